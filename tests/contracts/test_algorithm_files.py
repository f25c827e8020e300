"""Every algorithm comes with a config that runs, its own or the smallest there is, and every
algorithm of a paper with a section in the docs; the script trains them."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from commands import Mrlm
from mrlm.cli.new import EXAMPLES
from mrlm.config import ExperimentConfig, load_config, parse_config
from mrlm.config.normalize import merge
from mrlm.core import registry
from mrlm.core.episodes import Episode, Group
from mrlm.core.types import Rollout, Task, Turn
from mrlm.experiment import dry_run, run_experiment
from places import ROOT

CONFIGS = ROOT / "configs"
PAGE = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
ALGORITHMS = registry.names("algorithms")
OF_PAPERS = [
    name
    for name, path in registry.files("algorithms").items()
    if re.search(r"\b\d{4}\.\d{5}\b", path.read_text(encoding="utf-8"))
]
MARL = ROOT / "scripts" / "marl.sh"


def config_of(algorithm: str, changes: Sequence[str] = ()) -> ExperimentConfig:
    """Its own config, or the one that `mrlm new` writes for an algorithm."""
    path = CONFIGS / f"{algorithm}.yaml"
    if path.exists():
        return load_config(path, changes)
    smallest = yaml.safe_load(EXAMPLES["algorithm"].config)
    return parse_config(smallest, [f"training.algorithm={algorithm}", *changes])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm_has_a_config_that_dry_runs(algorithm: str) -> None:
    config = config_of(algorithm)
    stages = [stage.training.algorithm for _, stage in config.stage_configs()]
    assert algorithm in stages
    text, problems = dry_run(config)
    assert not problems and "optimizer step" in text


@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (number % 6 > 0))
        for number, name in enumerate(ALGORITHMS)
    ],
)
def test_a_config_trains(algorithm: str, tmp_path: Path) -> None:
    """Its first step, on next to no data."""
    changes = ["training.report_to=none", f"output_dir={tmp_path / 'o'}"]
    config = config_of(algorithm, changes)
    size = min(config.training.batch_size, 8)
    short = {"training": {"num_iterations": 1, "batch_size": size}, "evaluation": {"episodes": 2}}
    stages = [merge(stage.changes, {"name": stage.name, **short}) for stage in config.stages]
    config = config.merged({**short, "stages": stages} if stages else short)
    result = run_experiment(config)
    assert result.history and (result.run_folder / "final").exists()


# -- the page --------------------------------------------------------------------------------------


def sections() -> dict[str, str]:
    """Name -> text of every section about an algorithm."""
    found = re.split(r"^### (\w+)$", PAGE, flags=re.MULTILINE)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


@pytest.mark.parametrize("algorithm", sorted({*OF_PAPERS, *sections()}))
def test_an_algorithm_has_a_section(algorithm: str) -> None:
    """One of a paper has all parts and a curve; of others the page says what their file says."""
    text, of_paper = sections()[algorithm], algorithm in OF_PAPERS
    for part in ("File", "Formula", "Use it", *(("Paper", "Knobs") if of_paper else ())):
        assert f"**{part}**" in text, part
    (file,) = re.findall(r"\*\*File\*\* `([^`]+)`", text)
    assert file == f"src/mrlm/algorithms/{algorithm}.py" and (ROOT / file).is_file()
    assert not of_paper or "**Curves** [" in text


def test_papers_of_the_page_are_those_of_the_files() -> None:
    """A number that stands in an algorithm's section stands in the files it is made of."""
    sources = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "src" / "mrlm").rglob("*.py")
    )
    for name, text in sections().items():
        if name in ALGORITHMS:
            for number in re.findall(r"\b\d{4}\.\d{5}\b", text):
                assert number in sources, (name, number)


def test_the_page_has_no_sections_of_what_there_is_not() -> None:
    assert set(sections()) <= set(ALGORITHMS)


def block(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return text


def test_the_algorithm_of_the_page_trains(
    tmp_path: Path, run: Mrlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied from the page into two files, it is found by its name, and its settings are read."""
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "mine.py").write_text(block("python"))
    (tmp_path / "mine.yaml").write_text(block("yaml"))
    monkeypatch.syspath_prepend(str(tmp_path))
    done = run("train", "--config", "mine.yaml", "--output", "out")
    assert done.code == 0, done.err
    assert (tmp_path / "out" / "final").exists()
    assert "sharpness: 2.0" in (tmp_path / "out" / "config.yaml").read_text()
    code = [
        line for line in block("python").splitlines() if line and not line.startswith(("#", '"'))
    ]
    assert len(code) <= 24, "an algorithm of one's own fits on a screen"


def test_the_algorithm_of_the_page_ranks_siblings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ranking.py").write_text(block("python"))
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = registry.load("algorithms", "ranking:Mine")(group_size=4)
    episodes = []
    for reward in (0.0, 5.0, 100.0, 5.0):
        turn = Turn("a", "p", [1], [2], [-1.0], reward=reward)
        episodes.append(
            Episode("e", Task("t"), {"a": Rollout("a", "p", "e", [turn])}, reward, [reward], "done")
        )
    mine.credit([Group(episodes, "t")])
    found = [turn.advantages for episode in episodes for turn in episode.turns]
    assert found == pytest.approx([-1.0, 0.0, 1.0, 0.0])


# -- the script ------------------------------------------------------------------------------------


def marl(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [str(MARL), *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )


@pytest.mark.slow  # every file it takes is trained by above, in this process
def test_the_script_trains_a_team(tmp_path: Path) -> None:
    short = [f"stages.{stage}.training.num_iterations=1" for stage in (0, 1)]
    short += ["stages.1.evaluation.episodes=2", "training.report_to=none"]
    done = marl("magrpo", *short, "--output", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "out" / "final").is_dir()


def test_the_script_names_what_it_knows(tmp_path: Path) -> None:
    for arguments in ((), ("nothing",)):
        done = marl(*arguments, cwd=tmp_path)
        assert done.returncode == 2 and "mappo" in done.stderr and "magrpo" in done.stderr
