"""The rows of episodes that rules see: how many, for how long, and what is computed of them."""

from typing import Any

from mrlm.doctor.recent import MOST, RecentEpisodes, Rows, training


def row(step: int, name: str = "train/x/0/0", **more: Any) -> dict[str, Any]:
    return {"step": step, "id": name, **more}


def ids(rows: Rows) -> list[str]:
    return [each["id"] for each in rows]


def test_the_first_episodes_of_a_step_and_of_its_evaluation_are_kept() -> None:
    recent = RecentEpisodes()
    for number in range(2 * MOST):
        recent.add(row(1, f"train/x/{number}/0"))
        recent.add(row(1, f"eval/x/{number}/0"))
    assert len(recent) == 2 * MOST and recent[-1]["id"] == f"eval/x/{MOST - 1}/0"
    assert ids(training(recent)) == [f"train/x/{number}/0" for number in range(MOST)]
    assert training([row(1, replayed={"kind": "turn"})]) == []


def test_a_thinned_record_keeps_evaluations_and_some_steps() -> None:
    recent = RecentEpisodes()
    for step in (1, 2, 3):
        recent.add(row(step))
    recent.add(row(3, "eval/x/0/0"))
    assert recent.by_step(len) == {1: 1, 2: 1, 3: 2}
    recent.keep(2)
    assert recent.by_step(len) == {2: 1, 3: 1} and recent[1]["id"] == "eval/x/0/0"
