"""What is saved and published is loaded by transformers and PEFT in another process, from another
folder, and answers as the run's last evaluation did."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters import KINDS, ROWS, peft_model, tokenizer
from forking import Launcher
from mrlm import ExperimentConfig, Team, default_model, read_run
from mrlm.algorithms.magrpo import MAGRPOTrainer
from mrlm.algorithms.sft import SFTTrainer
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.experiment import run_experiment
from mrlm.teams.packing import Published, pack

pytestmark = pytest.mark.system

TITLE = "Saved and published models"
JUDGE = "transformers and PEFT, in another process"
DIFFERENCES = (
    "a published adapter on a base that is not on the Hub is refused, because PEFT could not load "
    "it: --base names the hub id of the same weights, --merge publishes whole models",
)

PROGRAM = """
import json, sys
from pathlib import Path
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM
answers = []
for case in json.loads(Path("asked.json").read_text()):
    folder = case["folder"]
    if case.get("base"):
        base = AutoModelForCausalLM.from_pretrained(case["base"])
        model = PeftModel.from_pretrained(base, folder)
    elif (Path(folder) / "adapter_config.json").is_file():
        model = AutoPeftModelForCausalLM.from_pretrained(folder)
    else:
        model = AutoModelForCausalLM.from_pretrained(folder)
    tokens = []
    for prompt, count in case["prompts"]:
        ids = list(prompt)
        with torch.no_grad():
            for _ in range(count):
                ids.append(int(model.eval()(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        tokens.append(ids[len(prompt):])
    answers.append(tokens)
assert not any(name.split(".")[0] == "mrlm" for name in sys.modules)
print("ANSWERS" + json.dumps(answers))
"""
WORDS: dict[str, Any] = {
    "num_iterations": 3,
    "batch_size": len(ROWS),
    "learning_rate": 3e-2,
    "report_to": "none",
    "max_new_tokens": 8,
    "evaluation.episodes": 2,
    "evaluation.greedy": True,
}


@pytest.fixture(scope="module")
def stranger() -> Iterator[Launcher]:
    """Starts processes that know nothing of this library."""
    made = Launcher("import peft, transformers")
    yield made
    made.close()


def program(stranger: Launcher, text: str, asked: Any, folder: Path) -> list[Any]:
    """The answers of a program that reads what it is asked and runs in a folder."""
    (folder / "program.py").write_text(text)
    (folder / "asked.json").write_text(json.dumps(asked))
    done = stranger.run([str(folder / "program.py")], folder)
    assert done.code == 0, done.err[-2000:]
    return json.loads(done.out.rpartition("ANSWERS")[2])


def asked(result: Any) -> list[tuple[list[int], list[int]]]:
    """Prompt and sampled tokens of the episodes of an evaluation."""
    turns = [turn for episode in result.episodes for turn in episode.turns]
    return [(list(turn.prompt_ids), list(turn.completion_ids)) for turn in turns]


def case(folder: Path, turns: list[tuple[list[int], list[int]]], **more: Any) -> dict[str, Any]:
    prompts = [(prompt, len(completion)) for prompt, completion in turns]
    return {"folder": str(folder), "prompts": prompts, **more}


def trained(kind: str, folder: Path) -> list[tuple[list[int], list[int]]]:
    """A run with a live adapter; the greedy answers of an evaluation at its end."""
    math = registry.load("environments", "math")
    trainer = SFTTrainer(
        peft_model(kind),
        ROWS,
        tokenizer=tokenizer(),
        eval_envs=math(),
        output_dir=str(folder),
        **WORDS,
    )
    trainer.train()
    return asked(trainer.evaluate(episodes=2, greedy=True))


FEW = ("lora", "tokens", "pissa", "head")


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(FEW, id="few"),
        pytest.param(tuple(KINDS.keys() - FEW), id="rest", marks=pytest.mark.slow),
    ],
)
def test_every_adapter_answers_elsewhere_as_in_the_last_evaluation(
    kinds: tuple[str, ...], tmp_path: Path, stranger: Launcher, record_property: Any
) -> None:
    answers = {kind: trained(kind, tmp_path / kind) for kind in kinds}
    cases = [case(tmp_path / kind / "final", turns) for kind, turns in answers.items()]
    first = answers[kinds[0]]
    given = case(tmp_path / kinds[0] / "final", first, base=default_model())
    *found, plain, explicit = program(
        stranger, PROGRAM, [*cases, case(Path(default_model()), first), given], tmp_path
    )
    record_property("cases", len(cases) + 1)
    for kind, tokens in zip(kinds, found, strict=True):
        assert tokens == [completion for _, completion in answers[kind]], kind
    assert explicit == found[0] != plain


def pipeline(folder: Path, base: str, *algorithms: str) -> ExperimentConfig:
    rows, pairs = folder / "rows.jsonl", folder / "pairs.jsonl"
    rows.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    pair = {"prompt": "1+1", "chosen": "2", "rejected": "3"}
    pairs.write_text("".join(f"{json.dumps(pair)}\n" for _ in range(4)))
    data = {"sft": str(rows), "dpo": str(pairs)}
    return ExperimentConfig(
        experiment_name="p",
        output_dir=str(folder / "run"),
        model={"model_name_or_path": base, "lora": {"r": 4}},
        training={"num_iterations": 3, "batch_size": 2, "learning_rate": 3e-2},
        generation={"max_new_tokens": 8},
        evaluation={"episodes": 2, "greedy": True, "environments": [{"env_type": "math"}]},
        stages=[
            {"name": name, "training": {"algorithm": name}, "data": {"dataset": data[name]}}
            for name in algorithms
        ],
    )


def last_evaluation(run: Path) -> list[tuple[list[int], list[int]]]:
    """Prompt and sampled tokens of the last evaluation in the record of a run."""
    episodes = [each for each in read_run(run).episodes() if each.evaluation]
    last = max(each.step for each in episodes)
    turns = [turn for each in episodes if each.step == last for turn in each.turns]
    return [(turn.prompt_ids.tolist(), turn.completion_ids.tolist()) for turn in turns]


def test_a_pipeline_and_what_is_published_of_it(
    tmp_path: Path, tiny_path: str, stranger: Launcher, record_property: Any
) -> None:
    """`final/` has both stages; published by the hub id of its base, merged, and as a folder whose
    base moved with it."""
    base, run = tmp_path / "base", tmp_path / "run"
    shutil.copytree(tiny_path, base)
    run_experiment(pipeline(tmp_path, str(base), "sft", "dpo"))
    turns = last_evaluation(run / "2-dpo")
    with pytest.raises(ConfigError, match="which is not on the Hub; give --base ID"):
        pack(run / "final", tmp_path / "refused", published=Published("me/team"))
    (base / "README.md").write_text('# Base\n\nAs "other/model": `x = "me/base"`.\n')
    with pytest.raises(ConfigError, match="give --base me/base, as its card calls the same"):
        pack(run / "final", tmp_path / "refused", published=Published("me/team"))
    pack(run / "final", tmp_path / "named", published=Published("me/team", "me/base"))
    saved = json.loads((tmp_path / "named" / "adapter_config.json").read_text())
    assert saved["base_model_name_or_path"] == "me/base"
    assert "vllm serve me/base --enable-lora" in (tmp_path / "named" / "README.md").read_text()
    texts = [each.read_text() for each in (tmp_path / "named").glob("*.[jym]*") if each.is_file()]
    assert not any(str(tmp_path) in text for text in texts)
    pack(run / "final", tmp_path / "merged", merge=True, published=Published("me/team"))
    pack(run / "final", tmp_path / "packed")
    cases = [
        case(run / "final", turns),
        case(tmp_path / "named", turns, base=str(base)),
        case(tmp_path / "merged", turns),
        case(tmp_path / "packed", turns),
        case(run / "1-sft" / "final", turns),
    ]
    *found, first_stage = program(stranger, PROGRAM, cases, tmp_path)
    record_property("cases", len(found))
    assert all(tokens == [completion for _, completion in turns] for tokens in found)
    assert first_stage != found[0]
    (tmp_path / "packed").rename(tmp_path / "moved")
    base.rename(tmp_path / "gone")
    said = Team.from_pretrained(tmp_path / "moved").play(seed=0)
    assert list(said.turns[0].completion_ids) == turns[0][1]


def longer(row: dict[str, Any]) -> str:
    return row["prompt"] + " Long."


def test_what_agents_read_is_published_too(tmp_path: Path) -> None:
    """Templates travel (`formatter`); a function is named as missing (`formatter_function`), and
    refused until it is given. The tokenizer's own template decides what was read."""
    rewards = {"reward_func": lambda one, two: [0.0] * len(one)}
    trainer = MAGRPOTrainer(
        "mrlm/tiny",
        [{"prompt": "a"}, {"prompt": [{"role": "user", "content": "b"}]}],
        num_agents=2,
        formatters=["Short: {prompt}", longer],
        output_dir=str(tmp_path / "run"),
        **rewards,
        **{"num_iterations": 1, "batch_size": 1, "num_generations": 2, "max_new_tokens": 3},
    )
    trainer.train()
    pack(tmp_path / "run" / "final", tmp_path / "team", published=Published("me/team"))
    text = (tmp_path / "team" / "README.md").read_text()
    assert "Short: {prompt}" in text and "Python function `longer`, **which is missing" in text
    team = Team.from_pretrained(tmp_path / "team")
    with pytest.raises(ConfigError, match=r"formatters=\{'agent_1': longer\}"):
        team.play("hello")
    played = Team.from_pretrained(tmp_path / "team", formatters={"agent_1": longer}).play("hello")
    for turn, content in zip(played.turns, ("Short: hello", "hello Long."), strict=True):
        asked = [{"role": "user", "content": content}]
        ids = tokenizer().apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
        assert list(turn.prompt_ids) == ids
    with pytest.raises(ConfigError, match="names no column of a row"):
        Team.from_pretrained(tmp_path / "team", formatters="Short")


CARD = """
import json, os, re, sys
from pathlib import Path
asked = json.loads(Path("asked.json").read_text())
os.chdir("moved")
(lines,) = re.findall("## Load.*?```python\\n(.*?)```", Path("README.md").read_text(), re.DOTALL)
exec(lines)
answers = []
for prompt, count in asked:
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model.eval()(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    answers.append(ids[len(prompt):])
assert not any(name.split(".")[0] == "mrlm" for name in sys.modules)
print("ANSWERS" + json.dumps(answers))
"""


@pytest.mark.parametrize("kind", ["nf4", pytest.param("int8", marks=pytest.mark.slow)])
def test_adapters_of_a_quantised_base_answer_elsewhere_by_the_lines_of_their_card(
    kind: str,
    tmp_path: Path,
    tiny_path: str,
    stranger: Launcher,
    record_property: Any,
    caplog: Any,
) -> None:
    """Merged, they need no quantised base, and nothing but rounding moves their logits."""
    pytest.importorskip("bitsandbytes")
    base, run = tmp_path / "base", tmp_path / "run"
    shutil.copytree(tiny_path, base)
    config = pipeline(tmp_path, str(base), "sft")
    config.model.quantization = kind
    run_experiment(config)
    turns = last_evaluation(run / "1-sft")
    final = run / "1-sft" / "final"
    pack(final, tmp_path / "packed")
    with caplog.at_level("INFO", "mrlm"):
        pack(final, tmp_path / "merged", merge=True)
    (moved,) = re.findall(
        rf"dequantised from {kind}; its logits move by (\S+) at most", caplog.text
    )
    assert float(moved) < 1e-3  # a rate of 3e-2: float32 differs from float64 by up to 3e-4
    assert "quantization" not in (tmp_path / "merged" / "team.yaml").read_text()
    base.rename(tmp_path / "gone")
    (tmp_path / "packed").rename(tmp_path / "moved")
    prompts = [(prompt, len(completion)) for prompt, completion in turns]
    found = program(stranger, CARD, prompts, tmp_path)
    (merged,) = program(stranger, PROGRAM, [case(tmp_path / "merged", turns)], tmp_path)
    record_property("cases", len(turns) * 2)
    assert found == merged == [completion for _, completion in turns]
    played = Team.from_pretrained(tmp_path / "moved").play(seed=0)
    assert list(played.turns[0].completion_ids) == turns[0][1]
