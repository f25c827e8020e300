"""The result of a run on one screen."""

from pathlib import Path
from typing import Any

import yaml

from mrlm.runs import TrainResult
from mrlm.tracking.curves import learning_curve

CONFIG: dict[str, Any] = {
    "experiment_name": "pair",
    "training": {"algorithm": "magrpo"},
    "model": {"model_name_or_path": "mrlm/tiny"},
    "policies": {"p": {"trainable": True}, "judge": {"trainable": False}},
    "environments": [{"env_type": "relay"}],
}


def history(steps: int, agents: int = 2, **more: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        row = {"step": step, "seconds/play": 1.5, "seconds/learn": 0.5, "reward/mean": step / steps}
        row |= {f"reward/a{number}/mean": -step / steps for number in range(agents)}
        if step in (1, steps):
            row |= {"eval/reward/mean": 0.25 + step / 100, "eval/reward/std": 0.5}
            row |= {"eval/episodes/count": 100, "eval/reward/a0/mean": 0.125}
        rows.append(row | more)
    return rows


def printed(folder: Path, rows: list[dict[str, Any]]) -> list[str]:
    return str(TrainResult({}, rows, folder)).splitlines()


def test_rewards_are_by_agent_and_evaluations_have_intervals(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    lines = printed(tmp_path, history(40))
    assert lines[0] == "pair: magrpo; p from mrlm/tiny; relay; 40 iterations; 1:20"
    rows = [line.split() for line in lines]
    assert rows[1] == ["first", "last", "best"]
    assert rows[2] == ["reward", "0.062", "0.963", "0.963", "(step", "37-40)"]
    assert rows[3][:5] == ["reward", "a0", "-0.062", "-0.963", "-0.062"]
    held = ["held-out", "0.260", "±", "0.098", "0.650", "±", "0.098"]
    assert rows[5][:7] == held and "(step 40)" in lines[5]
    assert rows[6][:4] == ["held-out", "a0", "0.125", "0.125"]
    assert lines[-2] == f"files: {tmp_path} (trained model: {tmp_path / 'final'})"


def test_stages_follow_each_other_and_rows_are_cut(tmp_path: Path) -> None:
    for number, name in ((1, "words"), (2, "play"), (10, "late")):
        folder = tmp_path / f"{number}-{name}"
        folder.mkdir()
        text = yaml.safe_dump(CONFIG | {"experiment_name": name, "policies": {"x" * 200: {}}})
        (folder / "config.yaml").write_text(text)
    rows = history(5, stage=0) + history(5, agents=30, stage=1)
    rows += [{"step": step, "stage": 2, "loss": 8.0 / step} for step in (1, 2, 3)]
    lines = printed(tmp_path, rows)
    titles = [line.split(":")[0] for line in lines if "magrpo" in line]
    assert titles == ["words", "play", "late"]
    assert any(line.strip() == "22 more agents" for line in lines)
    assert lines[-3].split()[:4] == ["loss", "8.000", "2.667", "2.667"]
    assert max(map(len, lines[:-2])) <= 100 and len(lines) < 40


def test_nothing_was_trained(tmp_path: Path) -> None:
    assert len(printed(tmp_path, [])) == 2


class Counted(float):
    """A number that counts its additions."""

    count = 0

    def __radd__(self, other: float) -> float:
        Counted.count += 1
        return float(self) + other


def test_the_end_of_a_long_run_is_described_in_linear_time(tmp_path: Path) -> None:
    """The additions of moving means are counted, and their values compared with plain ones."""
    values = [Counted((step * 37 % 101) / 101) for step in range(600)]
    rows = [{"step": step, "reward/mean": value} for step, value in enumerate(values, start=1)]
    Counted.count = 0
    text, curve = "\n".join(printed(tmp_path, rows)), learning_curve(rows, 60)
    assert Counted.count <= 4 * len(rows) and "o held-out" in curve
    means = [sum(map(float, values[at : at + 60])) / 60 for at in range(541)]
    wanted = [f"{mean:.3f}" for mean in (means[0], means[-1], max(means))]
    (row,) = (line for line in text.splitlines() if "reward" in line)
    assert row.split()[1:4] == wanted
