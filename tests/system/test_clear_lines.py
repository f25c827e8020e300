"""Input that used to end in a page of traceback, in a message about something else, or in nothing:
now each is one clear message, through the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commands import Mrlm
from fake_trackers import fake as fake
from fake_trackers import open_log
from forking import Launcher
from mrlm.core.errors import ConfigError, ModelError
from mrlm.learn.policy.loading import load_model
from places import ROOT
from refusals import PLAY, copied_model, earlier_run, refused, write

_ = fake
RELAY = {**PLAY, "environments": [{"env_type": "relay", "max_number": 3}]}
TWICE = '[{"env_type": "math"}, {"env_type": "math"}]'
PRESENT = {"prompt": "1+1=", "question": "1+1=", "answer": "2"}
NULL = {**PRESENT, "answer": None}
START = "interrupted; nothing was saved yet\n"

SETTINGS: dict[str, tuple[list[str], list[str]]] = {
    "no such module": (
        ["model.lora={target_modules: [q_proj, nope]}"],
        ["lora.target_modules", "'nope'", "q_proj", "down_proj"],
    ),
    "no iteration": (["training.num_iterations=0"], ["training.num_iterations", "not 0"]),
    "fsdp without others": (
        ["distributed.enabled=true", "distributed.strategy=fsdp"],
        ["distributed.strategy=fsdp", "torchrun --nproc-per-node"],
    ),
    "fsdp without enabled": (
        ["distributed.strategy=fsdp"],
        ["distributed.strategy", "distributed.enabled=true"],
    ),
    "two environments of one name": ([f"environments={TWICE}"], ["'math'", "`name: math-2`"]),
    "no room for a prompt": (
        ["generation.max_new_tokens=8192"],
        ["max_new_tokens=8192", "no room for a prompt", "8192 positions"],
    ),
}


def short(message: str) -> None:
    assert len(message.splitlines()) <= 3, message


@pytest.mark.parametrize("case", SETTINGS)
def test_a_setting_that_cannot_work_is_one_clear_message(case: str, run: Mrlm) -> None:
    earlier_run()
    overrides, said = SETTINGS[case]
    short(refused(run, ["train", "--config", write(PLAY), *overrides], *said))


@pytest.mark.parametrize(
    "command",
    [
        ["eval", "--model", "nofolder"],
        ["eval", "-m", "nofolder", "-e", "math"],
        ["collect", "--model", "nofolder", "-o", "t.json"],
        ["train", "--resume", "nofolder"],
        ["train", "--config", "config.yaml", "--resume", "nofolder"],
        ["train", "--config", "config.yaml", "--resume", "nofolder/checkpoint-3"],
    ],
)
def test_a_folder_that_does_not_exist_is_named(command: list[str], run: Mrlm) -> None:
    write(PLAY)
    short(refused(run, command, "'nofolder", "does not exist"))


@pytest.mark.parametrize("world", ["math", "qa", "search_qa", "tools"])
def test_a_null_answer_is_named_with_its_line_before_anything_is_written(
    world: str, run: Mrlm
) -> None:
    Path("rows.jsonl").write_text(f"{json.dumps(PRESENT)}\n{json.dumps(NULL)}\n")
    key = "tasks" if world == "tools" else "dataset"
    config = {**PLAY, "environments": [{"env_type": world, key: "rows.jsonl"}]}
    said = "rows.jsonl, line 2: column 'answer' is null", "on_bad_row: skip"
    short(refused(run, ["train", "--config", write(config)], *said))
    skip = ["--dry-run", "environments.0.on_bad_row=skip"]
    code, _, err = run("train", "--config", "config.yaml", *skip)
    assert code == 0, err


def test_a_chat_template_that_is_none_is_named_with_its_file(run: Mrlm, tiny_path: str) -> None:
    folder = copied_model(tiny_path, "broken")
    (folder / "chat_template.jinja").write_text("\n{% for m in messages %}{{ m.content }")
    command = ["train", "--config", write(PLAY), "model.model_name_or_path=./broken"]
    short(refused(run, command, "broken/chat_template.jinja', line 2", "not a valid template"))


@pytest.mark.parametrize("size", [5, 500, 100_000])
def test_weights_that_are_cut_short_name_the_file(size: int, run: Mrlm, tiny_path: str) -> None:
    folder = copied_model(tiny_path, "cut")
    os.truncate(folder / "model.safetensors", size)
    command = ["train", "--config", write(PLAY), "model.model_name_or_path=./cut"]
    short(refused(run, command, "cut/model.safetensors", "damaged or cut short"))


def test_a_broken_json_file_of_a_model_is_named(tiny_path: str) -> None:
    folder = copied_model(tiny_path, "half")
    (folder / "config.json").write_text('{"model_type": ')
    with pytest.raises(ModelError, match=r"half/config\.json"):
        load_model("./half")


@pytest.mark.parametrize("fake", ["wandb"], indirect=True)
def test_wandb_without_a_login_is_refused_before_anything_is_written(
    fake: Any, run: Mrlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(fake, "login", lambda prompt=True, verify=True: False, raising=False)
    command = ["train", "--config", write(PLAY), "training.report_to=[wandb]"]
    short(refused(run, command, "training.report_to", "`wandb login`", "{mode: offline}"))
    code, _, err = run(*command, "training.wandb={mode: offline}")
    assert code == 0, err  # a whole run: its log asks the tracker once more
    assert [call[1]["mode"] for call in fake.calls if call[0] == "init"] == ["offline"]
    monkeypatch.setenv("WANDB_MODE", "offline")
    code, _, err = run(*command, "--dry-run")
    assert code == 0, err


@pytest.mark.parametrize("fake", ["wandb"], indirect=True)
def test_a_tracker_that_cannot_start_is_one_line(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**words: Any) -> None:
        raise OSError("no route\nto the server")

    monkeypatch.setattr(fake, "init", refuse)
    with pytest.raises(ConfigError, match=r"'wandb' cannot start: OSError: no route$") as caught:
        open_log(tmp_path, trackers=["wandb"])
    assert isinstance(caught.value.__cause__, OSError)


# -- what is no error, and used to pass in silence -------------------------------------------------


def test_a_finished_run_says_so_when_it_is_resumed(run: Mrlm) -> None:
    write(RELAY)
    assert run("train", "--config", "config.yaml").code == 0
    before = Path("run/metrics.jsonl").read_text()
    done = run("train", "--resume", "run")
    assert done.code == 0 and "it has done 1 iteration already" in done.err
    assert "training.num_iterations" in done.err
    assert Path("run/metrics.jsonl").read_text() == before


def test_more_evaluation_episodes_than_tasks_are_reported(run: Mrlm) -> None:
    rows = [json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) for n in range(3)]
    Path("rows.jsonl").write_text("\n".join(rows))
    world = {"env_type": "math", "dataset": "rows.jsonl"}
    write({**PLAY, "environments": [world], "evaluation": {"episodes": 50, "every": 1}})
    done = run("train", "--config", "config.yaml", "--steps", "2")
    assert done.code == 0 and done.err.count("50 episodes of environment 'math'") == 1
    assert "3 held-out tasks" in done.err


def test_a_filter_that_keeps_nothing_is_reported(run: Mrlm) -> None:
    write({**PLAY, "grpo": {"group_size": 2, "dynamic_sampling": True, "max_refills": 1}})
    done = run("train", "--config", "config.yaml", "environments.0.difficulty_range=[3,3]")
    assert (
        done.code == 0 and "step 1: none of 4 groups (1 refills) has different rewards" in done.err
    )
    sft = {**PLAY, "training": {**PLAY["training"], "algorithm": "sft"}}
    sft |= {"sft": {"filter_low_reward": True, "min_reward_threshold": 99}}
    del sft["grpo"]
    write({**sft, "environments": [{"env_type": "relay"}]})
    done = run("train", "--config", "config.yaml")
    assert done.code == 1 and "min_reward_threshold=99" in done.err


def test_steps_cut_every_stage(run: Mrlm) -> None:
    stages = [{"name": "one", "training": {"num_iterations": 1}}, {"name": "two"}]
    stages += [{"name": "three", "num_iterations": 40}]
    write({**RELAY, "training": {**PLAY["training"], "num_iterations": 30}, "stages": stages})
    done = run("train", "--config", "config.yaml", "--steps", "2")
    assert done.code == 0, done.err
    assert [_steps(f"run/{name}") for name in ("1-one", "2-two", "3-three")] == [1, 2, 2]


def test_steps_cut_epochs_and_are_at_least_one(run: Mrlm) -> None:
    rows = [json.dumps({"prompt": f"{n}+1=", "completion": str(n + 1)}) for n in range(8)]
    Path("rows.jsonl").write_text("\n".join(rows))
    training = {"algorithm": "sft", "num_epochs": 5, "batch_size": 2, "report_to": "none"}
    config = {key: PLAY[key] for key in ("output_dir", "model")}
    write({**config, "training": training, "data": {"dataset": "rows.jsonl"}})
    assert run("train", "--config", "config.yaml", "--steps", "3").code == 0
    assert _steps("run") == 3
    done = run("train", "--config", "config.yaml", "--steps", "0")
    assert done.code == 2


def _steps(folder: str) -> int:
    return len(Path(folder, "metrics.jsonl").read_text().splitlines())


def test_a_run_in_the_folder_of_a_pipeline_moves_it_aside(run: Mrlm) -> None:
    write({**RELAY, "stages": [{"name": "one"}]}, "stages.yaml")
    assert run("train", "--config", "stages.yaml").code == 0
    write(RELAY)
    assert run("train", "--config", "config.yaml").code == 0
    assert Path("run.1/1-one/final").is_dir() and not Path("run/1-one").exists()
    assert run("train", "--resume", "run", "training.num_iterations=2").code == 0


# -- Ctrl-C, and what is advised after an error ----------------------------------------------------


@pytest.mark.parametrize("library", ["typer", "torch"])
def test_an_interrupt_while_a_library_is_loaded_is_one_line_and_exit_code_130(library: str) -> None:
    """Of the command line, or of the command. Libraries run text while they are loaded, and Python
    remembers an interrupt of that as nobody's."""
    Path("sitecustomize.py").write_text(
        "import builtins, os, signal\n"
        "known = builtins.__import__\n"
        "def look(name, *rest, **words):\n"
        f"    if name == {library!r}:\n"
        "        builtins.__import__ = known\n"
        "        exec('os.kill(os.getpid(), signal.SIGINT)')\n"
        "    return known(name, *rest, **words)\n"
        "builtins.__import__ = look\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mrlm", "train", "--config", write(RELAY)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())},
    )
    assert done.returncode == 130, done
    assert done.stderr == ("interrupted\n" if library == "torch" else START)


@pytest.mark.parametrize("saved", [False, True])
def test_a_resume_is_advised_only_where_there_is_a_checkpoint(saved: bool, run: Mrlm) -> None:
    Path("mine_full.py").write_text(
        "from mrlm.core.errors import TrainingError\n"
        "from mrlm.environments.relay import RelayEnvironment\n"
        "from mrlm.algorithms.grpo import GRPO\n"
        "calls = []\n"
        "class Failing(GRPO):\n"
        "    def credit_group(self, group):\n"
        "        calls.append(group)\n"
        f"        if len(calls) > {4 if saved else 0}:\n"
        "            raise TrainingError('no more')\n"
        "        return super().credit_group(group)\n"
    )
    training = {**PLAY["training"], "algorithm": "mine_full:Failing", "num_iterations": 9}
    config = {key: value for key, value in RELAY.items() if key != "grpo"}
    algorithm = {"group_size": 2}
    write({**config, "training": {**training, "save_steps": 1}, "algorithm": algorithm})
    Path("run/checkpoint-7").mkdir(parents=True)  # of an earlier run
    Path("run/checkpoint-7/manifest.json").write_text("{}")
    os.utime("run/checkpoint-7/manifest.json", (1, 1))
    sys.path.insert(0, str(Path.cwd()))
    try:
        done = run("train", "--config", "config.yaml")
    finally:
        sys.path.remove(str(Path.cwd()))
        sys.modules.pop("mine_full", None)
    assert done.code == 1 and "no more" in done.err
    assert ("--resume run" in done.err) == saved


def test_an_example_without_its_extra_prints_the_line_that_installs_it(launcher: Launcher) -> None:
    example = ROOT / "examples" / "outside_agents.py"
    program = Path("program.py").absolute()
    program.write_text(
        "import runpy, sys\n"
        "sys.modules['langchain_core'] = None\n"
        f"runpy.run_path({str(example)!r}, run_name='__main__')\n"
    )
    done = launcher.run([str(program)], Path.cwd())
    assert done.code == 1 and "Traceback" not in done.err
    assert 'pip install "mrlm[outside_agents]"' in done.err.splitlines()[-1]
