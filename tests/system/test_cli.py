"""The command line as a user types it: what it prints, writes and exits with."""

import json
import logging
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
import yaml

import mrlm
import mrlm.cli._options
from commands import Done, Mrlm
from mrlm import cli, distributed, experiment, runs
from mrlm.cli import eval, train
from mrlm.config import parse_config
from mrlm.core import registry
from mrlm.core.episodes import Episode
from mrlm.core.errors import ConfigError, RewardError
from mrlm.core.types import Message, Role, Rollout, Task, Turn
from mrlm.data.tasks import read_rows
from mrlm.runs import EvalResult, TrainResult

CONFIG: dict[str, Any] = {
    "experiment_name": "small",
    "environments": [{"env_type": "relay"}],
    "training": {
        "algorithm": "magrpo",
        "num_iterations": 2,
        "batch_size": 2,
        "learning_rate": 1e-4,
        "report_to": "none",
    },
    "magrpo": {"group_size": 2},
    "generation": {"max_new_tokens": 3},
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two agents with weights of their own."""
    folder = tmp_path_factory.mktemp("trained")
    experiment.run_experiment(
        mrlm.load_config(_written(folder, CONFIG), [f"output_dir={folder / 'run'}"])
    )
    return folder / "run"


def _written(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "config-in.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mrlm", *arguments], capture_output=True, text=True
    )


# -- help and usage ----------------------------------------------------------------------------


def test_no_command_at_all_is_asking_for_help(run: Mrlm) -> None:
    done = run()
    said = done.out + done.err
    assert "Usage: mrlm" in said and "Missing command" not in said
    assert all(command in said for command in cli.commands())


def test_the_version_and_the_completion_of_shells(
    run: Mrlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--version").out == f"mrlm {mrlm.__version__}\n"
    monkeypatch.setenv("_MRLM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "mrlm quick")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert run().out.split() == ["quickstart"]
    monkeypatch.setenv("COMP_WORDS", "mrlm quickstart --")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert {"--steps", "--output", "--verbose"} <= set(run().out.split())


def test_every_option_says_what_it_is() -> None:
    commands: Any = typer.main.get_command(cli.command_line())
    for name, command in commands.commands.items():
        for option in command.params:
            assert getattr(option, "help", True), f"{name} {option.name}"


def test_a_new_command_is_one_file(
    run: Mrlm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by its name, with options that stand in it."""
    (tmp_path / "greet.py").write_text(
        "from typing import Annotated\nimport typer\n\n"
        "NAME = typer.Option('--name', '-n', help='Whom.')\n\n"
        "def greet(name: Annotated[str, NAME] = 'all') -> None:\n"
        "    'Say hello.'\n    print('hello', name)\n"
    )
    monkeypatch.setattr(cli, "__path__", [*cli.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "mrlm.cli.greet", raising=False)
    assert cli.commands()[-1] == "greet" and "Say hello." in run("--help").out
    assert run("greet", "-n", "Ada").out == "hello Ada\n" and run("greet").out == "hello all\n"
    assert run("greet", "--nam", "x").code == 2
    assert "Whom." in run("greet", "--help").out


def test_help_of_no_command_loads_a_heavy_library() -> None:
    """One process asks for the help of every command, so that none of them loads any."""
    lines = [[], *([command] for command in cli.commands())]
    program = (
        "import sys\n"
        "from mrlm.cli import main\n"
        f"for line in {lines!r}:\n"
        "    sys.argv = ['mrlm', *line, '--help']\n"
        "    try: main()\n"
        "    except SystemExit as ended: assert not ended.code, ended.code\n"
        "    heavy = {'torch', 'transformers', 'peft', 'datasets', 'numpy', 'rich.live'}\n"
        "    heavy |= set() if line else {'pydantic', 'yaml', 'grpc'}\n"
        "    assert not heavy & set(sys.modules), (line, heavy & set(sys.modules))\n"
        "print('asked:', len(sys.argv))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and "asked:" in done.stdout, done.stderr
    assert all(
        command in done.stdout.partition("Usage: mrlm train")[0] for command in cli.commands()
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--confg", "x"], "--confg"),
        (["trian"], "trian"),
        (["train"], "error: no experiment is given; use --config"),
        (["plan", "small.yaml"], "error: no experiment is given; use --config small.yaml"),
        (
            ["train", "--config", "small.yaml", "agents={frist: {policy: first}}"],
            "agents.frist: no environment has an agent of this name; did you mean 'first'?",
        ),
        (["look", "outputs/no"], "error: outputs/no: folder does not exist"),
        (["look", "small.yaml"], "error: small.yaml: it is a file; give a run folder"),
        (["doctor", "small.yaml"], "is examined by mrlm doctor --config small.yaml"),
        (["view", "small.yaml"], "error: small.yaml: it is a file; give a run folder"),
        (["train", "--config", "small.yaml", "--resume"], "outputs/small"),
        (["eval", "--model", ".", "--environment", "math"], "has no model (no config.json"),
        (["collect", "--model", "mrlm/tiny"], "--output"),
        (["eval", "-c", "small.yaml", "-o", "."], "error: . cannot be written: it is a folder"),
        (["eval", "-c", "small.yaml", "-o", "small.yaml/x"], "small.yaml/x cannot be written: Not"),
        (["collect", "-c", "small.yaml", "-o", "x", "--record", "small.yaml/x"], "cannot be wri"),
        (["eval", "--config", "small.yaml", "--success", "inf"], "--success inf: give a finite"),
        (["collect", "-o", "x", "--filter-reward", "nan"], "--filter-reward nan: give a finite"),
        (["view", ".", "--text", "--host", "::"], "--host is for a page"),
        (["info", "--wait", "1"], "--wait is for a server"),
        (["info", "--server", "x:1", "--no-plugins"], "--no-plugins is for this machine"),
        (["recipe", "show", "magrpo", "training.seed=1"], "training.seed=1 is for mrlm recipe"),
        (["recipe", "list", "--scale", "cpu"], "--scale is for mrlm recipe show and run"),
        (["data", "--format", "parquet"], "--format has no effect: no data set is given"),
        (["data", "smollm2", "--on-bad-row", "skip"], "--on-bad-row has no effect: smollm2 is"),
        (["data", "check", "gsm8k", "--out", "x"], "--out has no effect: mrlm data check writes"),
        (["look", ".", "-e", "a", "--json", "--tokens", "values"], "--tokens is for text"),
        (["replay", ".", "-e", "a", "--check", "--from", "a:0"], "--check is for a recorded"),
        (["replay", ".", "-e", "a", "--message", ""], "--message is for continuations"),
        (["collect", "-m", "mrlm/tiny", "-e", "math", "-n", "0", "-o", "x"], "'--num-episodes'"),
    ],
)
def test_a_mistake_is_one_message_on_stderr_and_exit_code_2(
    arguments: list[str], said: str, run: Mrlm, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("evaluate_model", "collect_trajectories"):
        monkeypatch.setattr(runs, name, lambda *_: pytest.fail("it was played"))
    done = run(*arguments)
    assert done.code == 2 and said in done.err, done
    assert done.out == "" and "Traceback" not in done.err and 'File "' not in done.err
    assert not Path("outputs").exists(), "nothing is written for a mistake"


def test_exit_codes_of_runs_that_end_early(
    run: Mrlm, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Path("outputs/small/checkpoint-3/manifest.json")
    saves: list[bool] = []

    def ends(error: BaseException, *words: str) -> Done:
        def fail(*_: object) -> None:
            if saves:
                manifest.parent.mkdir(parents=True, exist_ok=True)
                manifest.write_text("{}")
            raise error

        monkeypatch.setattr(experiment, "run_experiment", fail)
        return run("train", "--config", config, *words)

    failed = ends(RewardError("reward of \x1b[2J is not a number"))
    assert failed.code == 1
    assert failed.err.startswith("error: reward of \\x1b[2J is not a number\n")
    stopped = ends(KeyboardInterrupt())
    assert stopped.code == 130 and stopped.err == "interrupted; nothing was saved yet\n"
    saves.append(True)
    stopped = ends(KeyboardInterrupt())
    assert stopped.code == 130
    again = f"continue with\n  mrlm train --config {config} --resume outputs/small"
    assert f"interrupted; the run is saved; {again}" in stopped.err
    failed = ends(RewardError("it is not a number"), "training.seed=3")
    assert failed.code == 1 and f"{again} training.seed=3\n" in failed.err
    wrong = ends(ConfigError("it cannot be"))
    assert wrong.code == 2 and "continue with" not in wrong.err
    saves.clear()
    os.utime(manifest, (100, 100))  # of a run before this one
    assert ends(KeyboardInterrupt()).err == "interrupted; nothing was saved yet\n"
    assert "continue with" not in ends(RewardError("it is not a number")).err
    assert again in ends(KeyboardInterrupt(), "--resume").err


def test_one_of_several_processes_speaks(
    run: Mrlm, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    monkeypatch.setattr(
        experiment, "run_experiment", lambda *_: TrainResult({}, [], Path("somewhere"))
    )
    for size, main in ((1, True), (2, True), (2, False)):
        monkeypatch.setattr(distributed, "world_size", lambda size=size: size)
        monkeypatch.setattr(distributed, "is_main", lambda main=main: main)
        monkeypatch.setattr(distributed, "start", lambda size=size: begun.append(size))
        done = run("train", "--config", config)
        assert done.code == 0 and ("run folder: somewhere" in done.out) == main, done
        assert bool(done.out) == main
    assert begun == [2, 2]


def test_a_bug_keeps_its_traceback(config: Path) -> None:
    program = (
        "import sys; from mrlm import cli, config\n"
        "config.load_config = divmod\n"  # cannot divide; no file of the user's has a part in it
        f"sys.argv = ['mrlm', 'train', '--config', {str(config)!r}]\n"
        "cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "TypeError: " in done.stderr


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        (logging.DEBUG, "so \\x1b[2J\n"),
        (logging.INFO, "so \\x1b[2J\n"),
        (logging.WARNING, "warning: so \\x1b[2J\n"),
        (logging.ERROR, "error: so \\x1b[2J\n"),
    ],
)
def test_messages_of_the_library_are_plain_lines(
    level: int, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.Stderr().emit(logging.LogRecord("mrlm", level, "", 0, "so %s", ("\x1b[2J",), None))
    assert capsys.readouterr() == ("", shown)


# -- train -------------------------------------------------------------------------------------


def test_a_run_says_how_it_went_and_what_to_type_next(run: Mrlm, config: Path) -> None:
    done = run("train", "--config", config, "--output", "out/a b")
    assert done.code == 0, done.err
    assert "small  step 2/2  reward" in done.out and "sampled reward 0.000 ->" in done.out
    assert "mrlm eval --model 'out/a b'" in done.out
    again = "mrlm train --resume 'out/a b' training.num_iterations=4"
    assert again in done.out and "tensorboard" not in done.out
    done = run("train", "--resume", "out/a b", "training.num_iterations=3", "--quiet")
    assert done.code == 0 and done.out == "out/a b\n"
    assert "continuing" not in done.err, "warnings only"
    lines = Path("out/a b/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]


@pytest.mark.slow
def test_a_profiled_run_ends_with_a_table_unless_it_is_to_be_quiet(run: Mrlm, config: Path) -> None:
    done = run("train", "--config", config, "--output", "out", "--profile")
    assert done.code == 0, done.err
    table = done.out.index("profile of small: 2 steps, ")
    assert done.out.index("small  step 2/2") < table < done.out.index("run folder: out")
    assert mrlm.load_config("out/config.yaml").training.profile
    more = ("training.num_iterations=3", "--quiet")
    assert run("train", "--resume", "out", *more).out == "out\n"
    lines = Path("out/profile.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2, 3]


def test_metrics_are_chosen_for_the_terminal(run: Mrlm, config: Path) -> None:
    done = run("train", "--config", config, "--output", "out", "--show", "*/cut, rewrd")
    assert done.code == 0, done.err
    lines = [line for line in done.out.splitlines() if line.startswith("small  step")]
    assert lines and all("  completion_length/cut 1" in line for line in lines)
    assert "--show rewrd: no metric of this run has this name" in done.out
    shown = run("train", "--resume", "out", "training.num_iterations=3", "--show", "loss")
    assert shown.code == 0 and "completion_length/cut" not in shown.out


def test_resume_alone_is_the_experiments_own_folder(run: Mrlm, config: Path) -> None:
    assert run("train", "-c", config, "training.num_iterations=1").code == 0
    done = run("train", "-c", config, "--resume", "training.num_iterations=2")
    assert done.code == 0 and "continuing from outputs/small/checkpoint-1" in done.err
    done = run("train", "-c", config, "training.seed=3", "--resume")
    assert done.code == 2 and "training.seed: 0 -> 3" in done.err


def test_what_a_run_goes_on_from_and_where_it_writes(
    run: Mrlm, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Path("there")
    (there / "checkpoint-3").mkdir(parents=True)
    (there / "config.yaml").write_text(config.read_text())
    asked: list[tuple[str | None, str | None]] = []

    def note(loaded: Any, resume: Any) -> None:
        asked.append((loaded.output_dir, None if resume is None else str(resume)))
        raise RewardError("enough")

    monkeypatch.setattr(experiment, "run_experiment", note)
    for words in (
        ["-c", config],
        ["-c", config, "--resume"],
        ["-c", config, "--resume", "--output", "here"],
        ["--resume", "there"],
        ["--resume", "there/checkpoint-3", "training.seed=1"],
        ["--resume", "there", "--output", "here"],
        ["-c", config, "--resume", "there", "-o", "here"],
    ):
        assert run("train", *words).err.startswith("error: enough\n")
    assert asked == [
        (None, None),
        (None, "outputs/small"),
        ("here", "here"),
        ("there", "there"),
        ("there", "there/checkpoint-3"),
        ("here", "there"),
        ("here", "there"),
    ]


def closing_words(history: list[dict[str, Any]], config: dict[str, Any]) -> list[str]:
    """What is said at the end of a run, without its curve."""
    loaded = parse_config(CONFIG | config, [], "a test")
    result = TrainResult({}, history, Path("out/a b"))
    text = train.closing(loaded, result, "mrlm train --resume 'out/a b'")
    return text.rpartition("\n\n")[2].splitlines()


@pytest.mark.parametrize("installed", [True, False])
def test_the_last_words_of_a_run_are_means_of_a_tenth_of_it(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "find_spec", {"tensorboard": installed}.get)
    history: list[dict[str, Any]] = [
        {"step": step + 1, "reward/mean": float(step**2), "eval/reward/mean": None}
        for step in range(20)
    ]
    history[3]["eval/reward/mean"], history[9]["eval/reward/mean"] = 0.25, -0.5
    history[19]["eval/reward/mean"] = 0.75
    reports = CONFIG["training"] | {"report_to": ["tensorboard"]}
    assert closing_words(history, {"training": reports}) == [
        "sampled reward 0.500 -> 342.500 (means of 2 steps)",  # (0 + 1) / 2, (18^2 + 19^2) / 2
        "held-out evaluation 0.250 -> 0.750",
        "run folder: out/a b (the trained model is in out/a b/final)",
        "try next:",
        "  mrlm view 'out/a b'",
        "  mrlm export 'out/a b' -o run.html",
        "  mrlm eval --model 'out/a b' --num-episodes 200",
        *["  tensorboard --logdir 'out/a b'"] * installed,
        "  mrlm train --resume 'out/a b' training.num_iterations=40",
    ]
    few = [{"step": 3, "reward/mean": 1.0}, {"step": 4}, {"step": 5, "reward/mean": 0.0}]
    assert closing_words(few, {})[0] == "sampled reward 1.000 -> 0.000"
    rows = [{"step": 1, "loss": 2.0, "data/reward/mean": 1.0}, {"step": 2, "loss": 0.5}]
    assert closing_words(rows, {})[0] == "loss 2.000 -> 0.500"
    assert closing_words([], {})[-1].endswith("training.num_iterations=2")


def test_the_last_words_of_a_pipeline_are_about_the_stages_that_were_played() -> None:
    stages = [{"name": name, "training": {"num_iterations": 1}} for name in ("a", "b", "c")]
    history: list[dict[str, Any]] = [
        {"step": 1, "stage": 0, "reward/mean": 1.0},
        {"step": 1, "stage": 1, "reward/mean": 2.0},
        {"step": 2, "stage": 1, "reward/mean": 4.0},
    ]
    assert closing_words(history, {"stages": stages}) == [
        "stage b: sampled reward 1.000 -> 1.000",
        "stage c: sampled reward 2.000 -> 4.000",
        "run folder: out/a b (the trained model is in out/a b/final)",
        "try next:",
        "  mrlm view 'out/a b'",
        "  mrlm export 'out/a b' -o run.html",
        "  mrlm eval --model 'out/a b' --num-episodes 200",
    ]


def test_only_a_checkpoint_of_this_run_is_gone_on_from(tmp_path: Path) -> None:
    assert not train._saved(tmp_path, None)
    for name, written_at in (("checkpoint-1", 100), ("2-b/checkpoint-3", 200)):
        (tmp_path / name).mkdir(parents=True)
        manifest = tmp_path / name / "manifest.json"
        manifest.write_text("{}")
        os.utime(manifest, (written_at, written_at))
    found = [train._saved(tmp_path, began) for began in (None, 100.0, 200.0, 200.5)]
    assert found == [True, True, True, False]
    given = ["a=1", "b=[x, y]"]
    again = f"mrlm train --config c.yaml --resume {tmp_path} a=1 'b=[x, y]'"
    assert train._again(Path("c.yaml"), tmp_path, given) == again
    assert train._again(Path("c.yaml"), tmp_path, []) == again.partition(" a=")[0]
    (tmp_path / "config.yaml").write_text("")
    assert train._again(Path("c.yaml"), tmp_path, given) == f"mrlm train --resume {tmp_path}"


# -- eval and collect --------------------------------------------------------------------------


def test_a_run_folder_is_played_with_its_own_worlds_and_models(trained: Path) -> None:
    loaded = cli._options.config_to_play(None, ["evaluation.episodes=3"], str(trained), None)
    assert [section.env_type for section in loaded.environments] == ["relay"]
    models = {name: section.model for name, section in loaded.policies.items()}
    assert models == {name: str(trained / "final" / name) for name in ("first", "second")}
    assert loaded.generation.max_new_tokens == 3 and loaded.evaluation.episodes == 3


def test_adapters_that_were_saved_are_not_laid_over_again(tmp_path: Path) -> None:
    changed = CONFIG | {"policies": {"first": {"lora": {"r": 2}}, "second": {"trainable": False}}}
    path = _written(tmp_path, changed)
    for name in ("first", "second"):
        (tmp_path / "final" / name).mkdir(parents=True)
    (tmp_path / "final" / "first" / "adapter_config.json").write_text("{}")
    loaded = cli._options.config_to_play(path, [], str(tmp_path), None)
    first, second = loaded.policies["first"], loaded.policies["second"]
    assert first.lora is None and first.model == str(tmp_path / "final" / "first")
    assert second.model is None and not second.trainable


def test_a_model_takes_the_place_of_those_that_the_config_names(tmp_path: Path) -> None:
    changed = CONFIG | {
        "model": {"model_name_or_path": "old", "torch_dtype": "bfloat16", "lora": {"r": 2}},
        "agents": {"first": {"policy": "a"}, "second": {"policy": "b"}},
        "policies": {
            "a": {"model": "old-a", "tokenizer": "old-a", "lora": {"r": 2}, "learning_rate": 0.5},
            "b": {"model": "old-b", "trainable": False},
            "c": {"endpoint": {"base_url": "http://there/v1", "model": "x"}},
        },
    }
    path = _written(tmp_path, changed)
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(ConfigError, match=f"{folder} has no model"):
        cli._options.config_to_play(path, None, str(folder), None)
    (folder / "config.json").write_text("{}")
    (tmp_path / "config.yaml").write_text(path.read_text())  # not of a run: it has no `final`
    found = cli._options.config_to_play(path, ["generation.max_new_tokens=5"], str(folder), None)
    assert found.model.model_name_or_path == str(folder) and found.model.lora is None
    assert found.model.torch_dtype == "bfloat16" and found.generation.max_new_tokens == 5
    a, b, c = (found.policies[name] for name in "abc")
    assert (a.model, a.tokenizer, a.lora, a.learning_rate) == (None, None, None, 0.5)
    assert (b.model, c.model) == ("old-b", None)
    alone = cli._options.config_to_play(None, None, str(folder), ["math", "code"])
    assert [each.env_type for each in alone.environments] == ["math", "code"]
    assert alone.model.model_name_or_path == str(folder) and not alone.policies
    hub = cli._options.config_to_play(path, None, "some/model", ["math"])
    assert hub.model.model_name_or_path == "some/model"
    for place, where in [(None, "the command line"), (path, str(path))]:
        with pytest.raises(ConfigError, match=f"^{re.escape(where)}: .*no_such"):
            cli._options.config_to_play(place, ["no_such.setting=1"], str(folder), ["math"])
    with pytest.raises(ConfigError, match=r"--model some/model: folder 'some/model' does not"):
        cli._options.config_to_play(None, None, "some/model", None)


def test_of_a_pipeline_the_last_stage_is_played(tmp_path: Path) -> None:
    stages = [{"name": str(n), "generation": {"max_new_tokens": n}} for n in (7, 8, 9)]
    path = _written(tmp_path, CONFIG | {"stages": stages})
    assert cli._options.config_to_play(path, None, None, None).generation.max_new_tokens == 9


def test_json_is_written_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c.json"
    for data in ({"x": [1.5, None]}, ["other"]):
        cli._options.write_json(path, data)
        assert json.loads(path.read_text()) == data
    with pytest.raises(ValueError, match="not JSON compliant"):
        cli._options.write_json(tmp_path / "n.json", [float("nan")])
    assert sorted(each.name for each in path.parent.iterdir()) == ["c.json"]


def test_eval_of_a_run_prints_intervals_and_writes_json(run: Mrlm, trained: Path) -> None:
    done = run("eval", "--model", trained, "-n", 4, "--samples", 2, "--output", "a/eval.json")
    assert done.code == 0, done.err
    heads, average, *passes = [line.split() for line in done.out.splitlines()[:4]]
    assert heads[:3] == ["environment", "measure", "value"]
    assert average[:3] == ["relay", "reward", "avg@2"] and average[-1] == "4"
    assert [line[1] for line in passes] == ["pass@1", "pass@2"]
    report = json.loads(Path("a/eval.json").read_text())
    assert len(report["episodes"]) == 8 and report["samples"] == 2 and not report["greedy"]
    assert report["environments"]["relay"]["pass@2"]["tasks"] == 4
    assert report["metrics"]["eval/episodes/count"] == 8


def test_eval_takes_the_config_s_words_unless_told_otherwise(
    run: Mrlm, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int, bool]] = []

    def remember(loaded: Any, episodes: int, samples: int, greedy: bool, record: Any) -> EvalResult:
        asked.append((episodes, samples, greedy))
        return EvalResult({"eval/reward/mean": float("nan")}, [])

    monkeypatch.setattr(runs, "evaluate_model", remember)
    for more in (
        [],
        ["evaluation.episodes=5", "evaluation.samples=3", "evaluation.greedy=false"],
        ["--num-episodes", "9", "--samples", "4"],
        ["--sampled"],
    ):
        assert run("eval", "--config", config, *more, "--output", "e.json").code == 0
    assert asked == [(64, 1, True), (5, 3, False), (9, 4, False), (64, 1, False)]
    assert json.loads(Path("e.json").read_text())["metrics"] == {"eval/reward/mean": None}


def test_eval_counts_failed_plays_apart(
    run: Mrlm, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(number: int, reward: float, status: Any) -> Episode:
        return Episode(f"e{number}", Task(f"t{number}"), {}, reward, [], status, environment="w")

    episodes = [play(0, 1.0, "done"), play(1, 0.0, "truncated"), play(2, 0.0, "error")]
    episodes[2].error = "it broke"
    monkeypatch.setattr(runs, "evaluate_model", lambda *_: EvalResult({}, episodes))
    done = run("eval", "--config", config, "-o", "e.json")
    assert (
        "w            pass@1        0.500" in done.out
        and "3 episodes, greedy, 1 failed" in done.out
    )
    kept = json.loads(Path("e.json").read_text())["episodes"]
    assert [row["reward"] for row in kept] == [1.0, 0.0, None]
    assert kept[2] == {
        "id": "e2",
        "environment": "w",
        "task_id": "t2",
        "reward": None,
        "agents": {},
        "components": {},
        "messages": {},
        "status": "error",
        "error": "it broke",
    }
    one = {"value": 0.5, "low": None, "high": 1.0, "tasks": 12}
    assert eval.table({"long name": {"reward avg@1": one}, "w": {"pass@1": one}}).splitlines() == [
        "environment  measure       value  95 % interval  tasks",
        "long name    reward avg@1  0.500  - .. 1.000     12",
        "w            pass@1        0.500  - .. 1.000     12",
    ]


def test_eval_says_what_a_success_is(
    run: Mrlm, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes = [
        Episode(f"e{place}", Task(f"t{place}"), {}, reward, [], "done", environment="w")
        for place, reward in enumerate((1.0, 0.5, 0.2, 0.0))
    ]
    monkeypatch.setattr(runs, "evaluate_model", lambda *_: EvalResult({}, episodes))
    for words, share in ((), "0.250"), (("--success", "0.5"), "0.500"), (("--success", "-1"), "1"):
        done = run("eval", "--config", config, *words, "--output", "e.json")
        assert f"w            pass@1        {share}" in done.out
        limit = float(words[1]) if words else 1.0
        assert f"a reward of at least {limit:g};" in done.out
        assert json.loads(Path("e.json").read_text())["success"] == limit


def test_collected_rows_are_read_back_for_supervised_learning(
    run: Mrlm, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rollout(agent: str, reward: float) -> Rollout:
        said = [Message("1+1="), Message("2", Role.ASSISTANT, agent=agent)]
        turn = Turn(agent, "p", [1], [2], reward=reward, components={"right": reward})
        return Rollout(agent, messages=said, turns=[turn])

    def play(number: int, status: Any) -> Episode:
        parts = {"a": rollout("a", 1.0), "b": rollout("b", 0.0)}
        return Episode(f"e{number}", Task("t"), parts, 1.0, [1.0], status, environment="w")

    episodes = [play(0, "done"), play(1, "truncated"), play(2, "error")]
    monkeypatch.setattr(runs, "collect_trajectories", lambda *_: episodes)
    done = run("collect", "--config", config, "-n", 3, "-o", "t.json", "--filter-reward", 1.0)
    assert done.code == 0 and "2 of 4 rollouts written to t.json (3 episodes, 1 of" in done.out
    first, second = read_rows("t.json")
    assert first == {
        "episode": "e0",
        "messages": [
            {"role": "user", "content": "1+1=", "agent": None},
            {"role": "assistant", "content": "2", "agent": "a"},
        ],
        "agent": "a",
        "reward": 1.0,
        "components": {"right": 1.0},
        "environment": "w",
        "task_id": "t",
        "status": "done",
    }
    assert second["status"] == "truncated"


@pytest.mark.parametrize("words", [("eval",), ("collect", "-o", "t.json"), ("train",)])
def test_quiet_is_without_messages(
    words: tuple[str, ...], run: Mrlm, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "evaluate_model", lambda *_: EvalResult({}, []))
    monkeypatch.setattr(runs, "collect_trajectories", lambda *_: [])
    monkeypatch.setattr(
        experiment, "run_experiment", lambda *_: TrainResult({}, [], Path("somewhere"))
    )
    for more, level in (((), logging.INFO), (("--quiet",), logging.WARNING)):
        assert run(*words, "--config", config, *more).code == 0
        log = logging.getLogger("mrlm")
        assert log.level == level
        assert len(log.handlers) == 1, "a message is printed once, however often a command is run"


def test_what_was_collected_trains(run: Mrlm, trained: Path, tmp_path: Path) -> None:
    assert run("collect", "--model", trained, "-n", 2, "-o", "t.json").code == 0
    rows = json.loads(Path("t.json").read_text())
    assert [row["agent"] for row in rows] == ["first", "second"] * 2
    learns = {
        "agents": {"first": {}, "second": {}},
        "training": CONFIG["training"] | {"algorithm": "sft", "num_iterations": 1},
        "data": {"dataset": "t.json"},
    }
    done = run("train", "--config", _written(tmp_path, learns), "--output", "sft")
    assert done.code == 0, done.err
    assert Path("sft/final/second/config.json").is_file()


# -- info --------------------------------------------------------------------------------------


def test_info_lists_versions_and_every_plug_in(run: Mrlm) -> None:
    done = run("info")
    assert done.code == 0
    for word in (f"mrlm          {mrlm.__version__}", "torch", "transformers", "threads", "cache"):
        assert word in done.out
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    for wing in registry.WINGS:
        assert wing in lines
        for name in registry.names(wing):
            assert f"{name} {' '.join(registry.describe(wing, name).split())}" in lines


def test_info_shows_what_is_installed_and_what_computes(
    run: Mrlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrlm.cli.info.LIBRARIES", ("torch", "no-such-library"))
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    threads = f"cpu           5 cores, {torch.get_num_threads()} threads for torch"
    installed = [f"torch         {torch.__version__}", "no-such-library not installed"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    lines = run("info", "--no-plugins").out.splitlines()
    assert lines[1].startswith(f"python        {platform.python_version()} on ")
    assert lines[2:6] == [*installed, threads, "cuda          none found"]
    assert lines[6].startswith("cache         /") and len(lines) == 7
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    found = [
        SimpleNamespace(name="H200", total_memory=139.7 * 2**30),
        SimpleNamespace(name="L4", total_memory=24 * 2**30),
    ]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found[index])
    lines = run("info", "--no-plugins").out.splitlines()
    assert lines[5:7] == ["cuda:0        H200, 140 GiB", "cuda:1        L4, 24 GiB"]


def test_a_server_that_is_asked_is_not_waited_for_unless_told_to(
    run: Mrlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []
    monkeypatch.setattr("mrlm.cli.info._server", lambda *given: asked.append(given[:2]))
    for words in ((), ("--wait", "2")):
        assert run("info", "--server", "there:1", *words).code == 0
    assert asked == [("there:1", 0.0), ("there:1", 2.0)]
