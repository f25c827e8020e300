"""A real pretrained model (`make test-real`): trained by five algorithms, killed and resumed, and
read by PEFT, transformers, llama.cpp and the `openai` client. It is `smollm2` of the cache, or the
folder in MRLM_REAL_MODEL; MRLM_REAL_WHEEL is the wheel with its GGUF file."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from mrlm import ExperimentConfig
from mrlm.learn.policy.gguf import local_name
from places import free_port

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

MODEL = os.environ.get("MRLM_REAL_MODEL", "smollm2")
ADAPTER = {"lora": {"r": 8, "alpha": 16}}
SUMS = [{"env_type": "math", "difficulty_range": [1, 1], "instruction": "Answer briefly."}]
LENGTHS = [{"env_type": "lengths:Lengths"}]
CASES: dict[str, dict[str, Any]] = {
    "grpo": {"environments": SUMS, "policies": {"solver": ADAPTER}},
    "magrpo": {"environments": LENGTHS, "policies": {"first": ADAPTER, "second": ADAPTER}},
    "mappo": {"environments": LENGTHS, "policies": {"both": ADAPTER}},
    "sft": {"data": {"dataset": "sft.jsonl"}, "policies": {}},
    "dpo": {"data": {"dataset": "dpo.jsonl"}, "policies": {"solver": ADAPTER}},
    "distill": {
        "environments": SUMS,
        "policies": {"solver": ADAPTER},
        "distill": {"privileged": ["answer"]},
    },
    "nf4": {"environments": LENGTHS, "policies": {"first": ADAPTER, "second": ADAPTER}},
}
"""Name -> what is trained: an adapter, a team with one each, a team with a common one and a critic,
all weights, an adapter by its own base that reads the answers, a team on one base in 4 bits."""
ROWS = {
    "sft": [{"prompt": f"What is {k} + 4?", "completion": f"It is {k + 4}."} for k in range(6)],
    "dpo": [{"prompt": f"{k} + 1?", "chosen": f"{k + 1}", "rejected": "No."} for k in range(6)],
}
PROGRAM = """
from mrlm import Environment, Message, Observation, Reward, StepResult

class Lengths(Environment):
    agents = ("first", "second")

    def reset(self, task=None, seed=None):
        prompt = [Message(f"Write about the number {seed % 100}.")]
        return StepResult({agent: Observation(prompt) for agent in self.agents})

    def step(self, actions):
        first, second = (len(actions[agent].content) for agent in self.agents)
        return StepResult(rewards={a: Reward((second - first) / 50) for a in actions}, done=True)
"""
NF4 = {
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "bnb_4bit_compute_dtype": torch.float32,
}
QUESTION = "What is 17 + 25? Answer with the number only."
TOKENS = 8
LLAMA = """
import llama_cpp
llama = llama_cpp.Llama({file!r}, n_threads=1, n_ctx=256, verbose=False)
asked = [{{"role": "user", "content": {question!r}}}]
found = llama.create_chat_completion(asked, temperature=0.0, max_tokens={tokens})
print(found["choices"][0]["message"]["content"])
"""
"""A process of its own: the thread libraries of torch and llama.cpp do not share one."""


def command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mrlm", *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=1500)
    assert process.returncode == 0, output[-3000:]
    return output


def prepare(name: str, folder: Path) -> Path:
    """A folder with the config of a case."""
    folder.mkdir()
    for kind, rows in ROWS.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{kind}.jsonl").write_text(text, encoding="utf-8")
    (folder / "lengths.py").write_text(PROGRAM, encoding="utf-8")
    algorithm = "magrpo" if name == "nf4" else name
    sampled = algorithm in ("grpo", "magrpo")
    config = ExperimentConfig(
        output_dir=str(folder / "run"),
        model={"model_name_or_path": MODEL, "quantization": "nf4" if name == "nf4" else None},
        training={
            "algorithm": algorithm,
            "num_iterations": 3,
            "batch_size": 2,
            "learning_rate": 2e-5 if name == "sft" else 2e-4,
            "save_steps": 1,
            "save_total_limit": 1,
        },
        generation={"max_new_tokens": TOKENS},
        evaluation={"episodes": 0},
        **({algorithm: {"group_size": 2}} if sampled else {}),
        **CASES[name],
    )
    config.save(folder / "x.yaml")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run of three steps."""
    folders: dict[str, Path] = {}

    def train(name: str) -> Path:
        if name not in folders:
            folder = prepare(name, tmp_path_factory.mktemp("real") / name)
            finished(command(folder, "train", "--config", "x.yaml"))
            folders[name] = folder / "run"
        return folders[name]

    return train


def rows(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run but those of time."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    timed = ("time", "tokens_per_second", "seconds/")
    return [
        {k: x for k, x in json.loads(each).items() if not k.startswith(timed)} for each in lines
    ]


def weights(run: Path) -> dict[str, bytes]:
    files = sorted((run / "final").rglob("*.safetensors"))
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


@pytest.mark.parametrize("name", CASES)
def test_an_algorithm_trains_it(name: str, trained: Callable[[str], Path]) -> None:
    run = trained(name)
    steps = rows(run)
    assert len(steps) == 3 and weights(run)
    assert any(row.get("grad_norm", 0.0) > 0 for row in steps), steps


@pytest.mark.parametrize("name", ["magrpo", "sft", "nf4"])
def test_a_killed_run_resumes_bit_for_bit(
    name: str, trained: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = prepare(name, tmp_path / name)
    process = command(folder, "train", "--config", "x.yaml")
    while not (folder / "run" / "checkpoint-1" / "state.json").is_file():
        assert process.poll() is None, process.communicate()[0][-3000:]
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (folder / "run" / "final").exists()
    finished(command(folder, "train", "--config", "x.yaml", "--resume"))
    whole = trained(name)
    assert rows(folder / "run") == rows(whole)
    assert weights(folder / "run") == weights(whole)


def greedy(model: Any, tokenizer: Any) -> str:
    """The answer of transformers."""
    messages = [{"role": "user", "content": QUESTION}]
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    found = model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS)
    return tokenizer.decode(found[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


@pytest.fixture(scope="module")
def client(trained: Callable[[str], Path]) -> Iterator[openai.OpenAI]:
    port = free_port()
    served = [
        f"second={trained('magrpo') / 'final' / 'second'}",
        f"whole={trained('sft')}",
        f"quantized={trained('nf4') / 'final' / 'second'}",
    ]
    options = [word for each in served for word in ("--policy", each)]
    process = command(Path.cwd(), "serve", *options, "--port", "0", "--http-port", str(port))
    found = openai.OpenAI(api_key="none", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0)
    try:
        for _ in range(1200):
            assert process.poll() is None, process.communicate()[0][-3000:]
            try:
                found.models.list()
                break
            except openai.APIConnectionError:
                time.sleep(0.25)
        yield found
    finally:
        process.terminate()
        process.communicate(timeout=120)


@pytest.mark.parametrize("name", ["second", "whole", "quantized"])
def test_other_libraries_read_what_is_saved_and_answer_as_the_server(
    name: str, trained: Callable[[str], Path], client: openai.OpenAI, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    place = tmp_path / "elsewhere"
    if name != "whole":
        run = trained("magrpo" if name == "second" else "nf4")
        shutil.copytree(run / "final" / "second", place)
        bits = BitsAndBytesConfig(load_in_4bit=True, **NF4) if name == "quantized" else None
        base = AutoModelForCausalLM.from_pretrained(
            local_name(MODEL), dtype=torch.float32, quantization_config=bits
        )
        if bits is not None:  # as the card says: with the numbers of the training
            base = base.dequantize()
        model = peft.PeftModel.from_pretrained(base, place)
    else:
        shutil.copytree(trained("sft") / "final", place)
        model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    answer = greedy(model, AutoTokenizer.from_pretrained(place))
    served = client.chat.completions.create(
        model=name,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=TOKENS,
    )
    assert answer.strip() and served.choices[0].message.content == answer


def test_greedy_tokens_are_those_of_llama_cpp(tmp_path: Path) -> None:
    """The weights are 4-bit numbers there, and activations 8-bit ones, so that only clear choices
    agree."""
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("llama_cpp is not installed")
    if "MRLM_REAL_WHEEL" not in os.environ:
        pytest.skip("MRLM_REAL_WHEEL is not set")
    with zipfile.ZipFile(os.environ["MRLM_REAL_WHEEL"]) as wheel:
        (name,) = [each for each in wheel.namelist() if each.endswith(".gguf")]
        file = wheel.extract(name, tmp_path)
    program = LLAMA.format(file=file, question=QUESTION, tokens=TOKENS)
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    folder = local_name(file)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    answer = greedy(model, AutoTokenizer.from_pretrained(folder))
    assert found.stdout.strip() == answer.strip()
