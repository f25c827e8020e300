"""A second process, which has only what a record or a card says, finds the run that was made."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

TITLE = "Records and cards of runs from Python"
JUDGE = "a second process"
DIFFERENCES = (
    "a function without a name that can be imported is named as a live object: its code is nowhere "
    "but in the program",
)

MODULE = '''
def size(prompts, completions, **columns):
    return [len(each) / 100 for each in completions]

def short(row):
    return "Short: " + row["prompt"]
'''
PROGRAM = '''
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
import mrlm
import scoring

def here(prompts, completions, **columns):
    return [len(each) / 100 for each in completions]

if __name__ == "__main__":
    kind = sys.argv[1]
    path = mrlm.default_model()
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(0.01)
    model.save_pretrained("mine")
    tokenizer.save_pretrained("mine")
    if kind != "path":
        model = AutoModelForCausalLM.from_pretrained("mine")
    if kind == "nameless":
        model.name_or_path = model.config._name_or_path = ""
    functions = {"lambda": lambda prompts, completions, **columns: [0.5] * len(completions)}
    functions |= {"guarded": here}
    rows = [{"prompt": f"say {n}"} for n in range(12)]
    trainer = mrlm.GRPOTrainer(
        model="mine" if kind == "path" else model, tokenizer=tokenizer,
        reward_funcs=functions.get(kind, scoring.size), formatters=scoring.short,
        train_dataset=rows, batch_size=2, num_generations=2, max_new_tokens=4,
        num_iterations=int(sys.argv[2]), save_steps=2, output_dir=sys.argv[3], learning_rate=1e-3,
        logging_steps=1,
    )
    print(trainer.train())
'''
LIVE = "this run had live objects of a program"


def _run(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True)


def _mrlm(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _run(["-m", "mrlm", *arguments], folder)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program, its module, and a run of each kind."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "scoring.py").write_text(MODULE)
    (folder / "program.py").write_text(PROGRAM)
    for kind in ("module", "guarded", "path", "lambda", "nameless"):
        done = _run(["program.py", kind, "2", kind], folder)
        assert done.returncode == 0, done.stderr[-2000:]
        (folder / f"{kind}.txt").write_text(done.stdout)
    return folder


def _config(folder: Path) -> Mapping[str, object]:
    return yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))


def _weights(folder: Path) -> str:
    return hashlib.sha256((folder / "final/model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("kind", ["module", "guarded", "path"])
def test_a_second_process_evaluates_replays_explains_and_resumes(programs: Path, kind: str) -> None:
    evaluated = _mrlm(programs, "eval", "--model", kind, "--num-episodes", "2")
    assert evaluated.returncode == 0 and "0 failed" in evaluated.stdout, evaluated.stderr
    looked = _mrlm(programs, "look", kind, "--json")
    episode = json.loads(looked.stdout.splitlines()[0])["id"]
    played = _mrlm(programs, "replay", kind, "--episode", episode)
    assert "equal to the log" in played.stdout, played.stderr
    explained = _mrlm(programs, "why", kind, "--episode", episode, "--n", "2")
    assert explained.returncode == 0, explained.stderr


def test_a_run_resumed_from_its_record_is_the_longer_run(programs: Path) -> None:
    whole = _run(["program.py", "module", "4", "whole"], programs)
    assert whole.returncode == 0, whole.stderr
    part = _run(["program.py", "module", "2", "part"], programs)
    assert part.returncode == 0, part.stderr
    resumed = _mrlm(programs, "train", "--resume", "part", "training.num_iterations=4")
    assert resumed.returncode == 0, resumed.stderr
    assert _weights(programs / "part") == _weights(programs / "whole")


@pytest.mark.parametrize("kind", ["module", "path", "nameless"])
def test_the_record_names_the_model_that_was_trained(programs: Path, kind: str) -> None:
    config = _config(programs / kind)
    assert "model_name_or_path" not in config["model"]
    named = config["policies"]["policy"]["model"]
    assert named == ("program:LlamaForCausalLM" if kind == "nameless" else "../mine")
    text = (programs / f"{kind}.txt").read_text()
    assert "mrlm/tiny" not in text + (programs / kind / "final/train.yaml").read_text()
    assert f"policy from {named}" in text


@pytest.mark.parametrize(
    ("kind", "command", "names"),
    [
        ("lambda", ["eval", "--model", "lambda"], "reward_func lambda in program.py"),
        ("lambda", ["train", "--resume", "lambda"], "reward_func lambda in program.py"),
        ("lambda", ["train", "--config", "lambda/final/train.yaml"], "reward_func lambda"),
        ("lambda", ["plan", "--config", "lambda/config.yaml"], "reward_func lambda"),
        ("nameless", ["train", "--config", "nameless/config.yaml"], "model LlamaForCausalLM"),
    ],
)
def test_what_only_the_program_has_is_named(
    programs: Path, kind: str, command: list[str], names: str
) -> None:
    done = _mrlm(programs, *command)
    assert done.returncode == 2 and LIVE in done.stderr and names in done.stderr, done.stderr


def test_a_card_says_reproduce_where_another_folder_gives_the_same_model(
    programs: Path, tmp_path: Path
) -> None:
    card = (programs / "module/final/README.md").read_text(encoding="utf-8")
    assert "## Reproduce" not in card and "the model object of policy" in card
    assert "the module `scoring`" in card and "`dataset.jsonl`" in card
    config = {
        "experiment_name": "built_in",
        "output_dir": str(tmp_path / "first"),
        "environments": [{"env_type": "relay"}],
        "training": {"algorithm": "grpo", "num_iterations": 1, "batch_size": 2, "seed": 3},
        "generation": {"max_new_tokens": 2},
        "grpo": {"group_size": 2},
    }
    (tmp_path / "built_in.yaml").write_text(yaml.safe_dump(config))
    assert _mrlm(tmp_path, "train", "--config", "built_in.yaml").returncode == 0
    final = tmp_path / "first/final"
    assert "## Reproduce" in (final / "README.md").read_text(encoding="utf-8")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "train.yaml").write_bytes((final / "train.yaml").read_bytes())
    again = _mrlm(elsewhere, "train", "--config", "train.yaml")
    assert again.returncode == 0, again.stderr
    files = sorted(each.relative_to(final) for each in final.rglob("*.safetensors"))
    same = elsewhere / "outputs/built_in/final"
    assert files and all((final / each).read_bytes() == (same / each).read_bytes() for each in files)


def test_a_card_counts_the_rules_that_had_enough(programs: Path) -> None:
    card = (programs / "module/final/README.md").read_text(encoding="utf-8")
    shown = _mrlm(programs, "doctor", "path")
    assert "of 13 rules had enough to look at" in card and "found nothing" not in card
    assert "2 of 13 rules had enough to look at" in shown.stdout
