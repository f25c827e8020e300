"""The history of a long run: exact where rules look, bounded in size, and of constant cost."""

import json
from typing import Any

import numpy as np
import pytest

from mrlm.core.errors import ConfigError
from mrlm.doctor import column
from mrlm.doctor.column import HEAD, MIDDLE, TAIL, Column
from mrlm.doctor.examination import Examination, make_rules
from mrlm.doctor.history import History


def test_known_values_of_metrics() -> None:
    history = History(
        {"step": step, "time": 1.0, "a": float(step), "b": None if step % 2 else step / 2}
        for step in range(1, 7)
    )
    steps, values = history.known("b")
    assert steps.tolist() == [2, 4, 6] and values.tolist() == [1.0, 2.0, 3.0]
    assert [x.tolist() for x in history.known("a", 2)] == [[5, 6], [5.0, 6.0]]
    assert [x.tolist() for x in history.known("missing")] == [[], []]
    steps, both = history.together(["a", "b"])
    assert steps.tolist() == [2, 4, 6] and both.tolist() == [[2.0, 4.0, 6.0], [1.0, 2.0, 3.0]]
    assert history.together(["a", "missing"])[1].shape == (2, 0)
    history.append({"step": 6, "seconds/play": 1.0, "tokens_per_second": 2.0})
    assert history.names("time|seconds/.*|tokens_per_second") == {} and history.step == 6
    history.append({"step": 7, "a": float("nan"), "c/x": 1.0})
    assert history.known("a", 1)[0].tolist() == [6]
    assert history.names(r"(?:b|c)/?(.*)") == {"b": "", "c/x": "x"}
    history.append({"step": 8, "c/a": 1.0})
    assert list(history.names(r"c/(.*)")) == ["c/a", "c/x"]


@pytest.mark.parametrize("count", [100, HEAD + MIDDLE + 2 * TAIL, 20_000])
def test_a_long_column_keeps_its_beginning_and_its_end(count: int) -> None:
    kept = Column()
    for step in range(count):
        kept.append(step, 2.0 * step)
    steps, values = kept.read()
    assert len(steps) <= HEAD + MIDDLE + 2 * TAIL and (values == 2 * steps).all()
    assert steps[:HEAD].tolist() == list(range(min(HEAD, count)))
    assert steps[-TAIL:].tolist() == list(range(max(0, count - TAIL), count))
    assert np.diff(steps).min() == 1
    assert np.diff(steps).max() <= 2 * max(1, count / MIDDLE), "no part of the run is lost"
    assert kept.read(TAIL)[0].tolist() == steps[-TAIL:].tolist()


def numbers(step: int) -> dict[str, Any]:
    """Metrics of a step: one that is always known, some that are not, one that is new."""
    rare = {"eval/reward/mean": step / 7} if step % 5 == 0 else {}
    late = {"late": float(step)} if step > 30 else {}
    return {"step": step, "loss": 1 / (step + 1), "never": None, **rare, **late}


@pytest.mark.parametrize("size", [16, 1024])
def test_a_history_continues_from_its_state(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD", "MIDDLE", "TAIL"):
        monkeypatch.setattr(column, name, size)
    whole, lengths = History(), {}
    again = {at: History() for at in (1, 25, 300, 600)}
    for step in range(1, 801):
        whole.append(numbers(step))
        for at, each in again.items():
            if step == at:
                text = json.dumps(whole.state_dict())
                lengths[at] = len(text)
                each.load_state_dict(json.loads(text))
            elif step > at:
                each.append(numbers(step))
    for each in again.values():
        assert each.step == 800 and each.names("l(.*)") == {"late": "ate", "loss": "oss"}
        for name in ("loss", "never", "eval/reward/mean", "late"):
            for found, known in zip(each.known(name), whole.known(name), strict=True):
                assert np.array_equal(found, known)
    assert size == 1024 or lengths[600] < 2 * lengths[300], "bounded"


def test_more_values_than_are_kept_are_refused() -> None:
    history = History([{"step": 1, "entropy": 1.0}])
    with pytest.raises(ConfigError, match=rf"the last {TAIL + 1} values of entropy"):
        history.known("entropy", TAIL + 1)


def test_a_step_costs_the_same_however_long_the_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values that rules read are counted, and the names that are compared with patterns."""
    for name, size in (("HEAD", 16), ("MIDDLE", 32), ("TAIL", 32)):
        monkeypatch.setattr(column, name, size)
    read = [0]
    known = Column.read

    def counted(self: Column, last: int | None = None) -> Any:
        found = known(self, last)
        read[0] += found[0].size
        return found

    monkeypatch.setattr(Column, "read", counted)
    examination, rng = Examination(make_rules()), np.random.default_rng(0)
    work = []
    for step in range(1, 801):
        before = read[0]
        reward = float(0.5 + 0.1 * rng.normal())
        names = ("reward/mean", "reward/a/mean", "reward/a/correct", "eval/reward/mean")
        row = dict.fromkeys(names, reward) | {"reward/std": 0.3, "eval/reward/std": 0.3}
        row |= {"advantage/a/zero": 0.2, "entropy": 1.0, "mismatch_kl": 1e-9, "grad_norm": 1.0}
        row |= {"completion_length/cut": 0.0, "eval/episodes/count": 64.0, "weight_change": 1e-4}
        row |= {"explained_variance": 0.0, "value_error": 0.1, "return_variance": 0.1}
        row |= {"frac_zero_variance": 0.1, "num_groups_played": 8.0, "num_groups_trained": 8.0}
        examination.examine({"step": step, **row})
        work.append(read[0] - before)
    assert max(work[400:]) <= 1.1 * max(work[200:400])
    assert max(work) < 60 * (16 + 32 + 2 * 32), "a read of every column by a few rules"
