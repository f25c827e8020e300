"""A second process, which has only what a record or a card says, finds the run that was made."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from forking import Launcher
from mrlm import read_run

pytestmark = pytest.mark.system

TITLE = "Records and cards of runs from Python"
JUDGE = "a second process"
DIFFERENCES = (
    "a function without a name that can be imported is named as a live object: its code is nowhere "
    "but in the program",
)

MODULE = """
def size(prompts, completions, **columns):
    return [len(each) / 100 for each in completions]

def short(row):
    return "Short: " + row["prompt"]
"""
PROGRAM = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
import mrlm
import scoring

def here(prompts, completions, **columns):
    return [len(each) / 100 for each in completions]

def train(kind, folder, steps=2):
    model = "mine" if kind == "path" else AutoModelForCausalLM.from_pretrained("mine")
    if kind == "nameless":
        model.name_or_path = model.config._name_or_path = ""
    functions = {"lambda": lambda prompts, completions, **columns: [0.5] * len(completions)}
    functions |= {"guarded": here}
    trainer = mrlm.GRPOTrainer(
        model=model, tokenizer=AutoTokenizer.from_pretrained("mine"),
        reward_funcs=functions.get(kind, scoring.size), formatters=scoring.short,
        train_dataset=[{"prompt": f"say {n}"} for n in range(12)], batch_size=2,
        num_generations=2, max_new_tokens=4, num_iterations=steps, save_steps=2,
        output_dir=folder, learning_rate=1e-3,
    )
    with open(folder + ".txt", "w") as file:
        print(trainer.train(), file=file)

if __name__ == "__main__":
    path = mrlm.default_model()
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(0.01)
    model.save_pretrained("mine")
    AutoTokenizer.from_pretrained(path).save_pretrained("mine")
    for kind in ("module", "guarded", "path", "lambda", "nameless"):
        train(kind, kind)
    train("module", "whole", 4)
    train("module", "part")
"""
SECOND = """
import contextlib, io, json, sys
from mrlm import cli

for arguments in json.loads(sys.argv[1]):
    sys.argv, out, err = ["mrlm", *arguments], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main()
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code or 0, out.getvalue(), err.getvalue()]), flush=True)
"""
LIVE = "this run had live objects of a program"
KINDS = ("module", "guarded", "path")
Done = tuple[int, str, str]


def _run(launcher: Launcher, folder: Path, name: str, text: str, *arguments: str) -> str:
    (folder / name).write_text(text)
    done = launcher.run([str(folder / name), *arguments], folder)
    assert done.code == 0, done.err[-2000:]
    return done.out


def _mrlm(launcher: Launcher, folder: Path, *commands: Sequence[str]) -> list[Done]:
    """Exit code, output and errors of commands, in one other process."""
    lines = _run(launcher, folder, "second.py", SECOND, json.dumps(commands)).splitlines()
    return [tuple(json.loads(line)) for line in lines]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory, launcher: Launcher) -> Path:
    """A folder with a program, its module, and a run of each kind."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "scoring.py").write_text(MODULE)
    _run(launcher, folder, "program.py", PROGRAM)
    return folder


def _episode(folder: Path) -> str:
    return next(read_run(folder).episodes()).id


@pytest.fixture(scope="module")
def second(programs: Path, launcher: Launcher) -> Mapping[str, Done]:
    """What another process says: command -> its result."""
    commands = [
        command
        for kind in KINDS
        for command in (
            f"eval --model {kind} --num-episodes 2",
            f"replay {kind} --episode {_episode(programs / kind)}",
            f"why {kind} --episode {_episode(programs / kind)} --n 2",
        )
    ]
    commands += ["train --resume part training.num_iterations=4", "doctor path"]
    commands += [command for command, _ in REFUSED]
    done = _mrlm(launcher, programs, *(command.split() for command in commands))
    return dict(zip(commands, done, strict=True))


def _config(folder: Path) -> Mapping[str, object]:
    return yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))


def _weights(folder: Path) -> str:
    return hashlib.sha256((folder / "final/model.safetensors").read_bytes()).hexdigest()


REFUSED = [
    ("eval --model lambda", "reward_func lambda in program.py"),
    ("train --resume lambda", "reward_func lambda in program.py"),
    ("train --config lambda/final/train.yaml", "reward_func lambda"),
    ("plan --config lambda/config.yaml", "reward_func lambda"),
    ("train --config nameless/config.yaml", "ForCausalLM"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_process_evaluates_replays_and_explains(
    second: Mapping[str, Done], kind: str
) -> None:
    done = {command.split()[0]: each for command, each in second.items() if f" {kind} " in command}
    assert done["eval"][0] == 0 and "0 failed" in done["eval"][1], done["eval"]
    assert "equal to the log" in done["replay"][1], done["replay"]
    assert done["why"][0] == 0, done["why"]


def test_a_run_resumed_from_its_record_is_the_longer_run(
    programs: Path, second: Mapping[str, Done]
) -> None:
    code, _, err = second["train --resume part training.num_iterations=4"]
    assert code == 0, err
    assert _weights(programs / "part") == _weights(programs / "whole")


@pytest.mark.parametrize("kind", ["module", "path", "nameless"])
def test_the_record_names_the_model_that_was_trained(programs: Path, kind: str) -> None:
    config = _config(programs / kind)
    assert "model_name_or_path" not in config["model"]
    named = config["policies"]["policy"]["model"]
    assert named.startswith("live-object:") if kind == "nameless" else named == "../mine"
    text = (programs / f"{kind}.txt").read_text()
    assert "mrlm/tiny" not in text + (programs / kind / "final/train.yaml").read_text()
    assert f"policy from {named}" in text


@pytest.mark.parametrize(("command", "names"), REFUSED)
def test_what_only_the_program_has_is_named(
    second: Mapping[str, Done], command: str, names: str
) -> None:
    code, _, err = second[command]
    assert code == 2 and LIVE in err and names in err, err


def test_a_card_says_reproduce_where_another_folder_gives_the_same_model(
    programs: Path, tmp_path: Path, launcher: Launcher
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
    assert _mrlm(launcher, tmp_path, ["train", "--config", "built_in.yaml"])[0][0] == 0
    final = tmp_path / "first/final"
    assert "## Reproduce" in (final / "README.md").read_text(encoding="utf-8")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "train.yaml").write_bytes((final / "train.yaml").read_bytes())
    code, _, err = _mrlm(launcher, elsewhere, ["train", "--config", "train.yaml"])[0]
    assert code == 0, err
    files = sorted(each.relative_to(final) for each in final.rglob("*.safetensors"))
    same = elsewhere / "outputs/built_in/final"
    assert files and all(
        (final / each).read_bytes() == (same / each).read_bytes() for each in files
    )


def test_a_card_counts_the_rules_that_had_enough(
    programs: Path, second: Mapping[str, Done]
) -> None:
    card = (programs / "module/final/README.md").read_text(encoding="utf-8")
    assert "of 13 rules had enough to look at" in card and "found nothing" not in card
    assert re.search(r"\d of 13 rules had enough to look at", second["doctor path"][1])
