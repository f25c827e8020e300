"""Every algorithm can stand in for every other: with one policy or several, with adapters on one
base, with models of different tokenizers, in one turn and in three. It trains, or the config says
in one sentence why it cannot be."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks.learning.table import TABLE

from any_algorithm import LEARNING, Watch, settings, weights
from any_algorithm import models as models
from mrlm import ExperimentConfig
from mrlm.build.policies import LiveObjects
from mrlm.build.run import build, plan_of
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.runs import run_to_end
from watched_runs import Watch as Noted

pytestmark = pytest.mark.system

ALGORITHMS = registry.names("algorithms")
BINDINGS = ("shared", "separate", "lora", "tokenizers")
TURNS = (1, 3)

REFUSED: dict[tuple[str, str], str] = {
    ("happo", "shared"): "share the policy 'team'; give each a policy (or an adapter) of its own"
}
"""(algorithm, binding) -> what the sentence says that refuses it; `*` stands for any binding."""


def covering() -> list[Any]:
    """Every combination. Those without the mark `slow` hold every algorithm, and every pair of a
    binding and a number of turns."""
    found = []
    for number, algorithm in enumerate(ALGORITHMS):
        for place, binding in enumerate(BINDINGS):
            for turns in TURNS:
                fast = place == number % 4 and turns == TURNS[number // 4 % 2]
                marks = [] if fast else [pytest.mark.slow]
                name = f"{algorithm}-{binding}-{turns}"
                found.append(pytest.param(algorithm, binding, turns, marks=marks, id=name))
    return found


@pytest.mark.parametrize(("algorithm", "binding", "turns"), covering())
def test_any_algorithm_can_be_put_in_the_place_of_any_other(
    algorithm: str, binding: str, turns: int, models: tuple[str, str], tmp_path: Path
) -> None:
    given = settings(algorithm, binding, turns, models) | {"output_dir": str(tmp_path / "run")}
    kept = {key: value for key, value in TABLE[algorithm].config.items() if key not in LEARNING}
    said = REFUSED.get((algorithm, binding)) or REFUSED.get((algorithm, "*"))
    if said is not None:
        with pytest.raises(ConfigError, match=re.escape(said)) as caught:
            plan_of(ExperimentConfig(**given).merged(kept), LiveObjects())
        assert "\n" not in str(caught.value)
        return
    watch = Watch()
    run = build(ExperimentConfig(**given).merged(kept), LiveObjects(callbacks=[watch]))
    history = run_to_end(run).history
    assert [row["step"] for row in history if row.get("loss") is not None] == [1, 2]
    assert all(math.isfinite(row["loss"]) for row in history if row.get("loss") is not None)
    after = weights(run)
    moved = {policy for policy, before in watch.before.items() if (after[policy] != before).any()}
    assert moved == set(after), "every policy has learned"


@pytest.mark.slow
@pytest.mark.parametrize("order", ["alternating", "sequential"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_any_algorithm_learns_by_any_schedule(
    algorithm: str, order: str, models: tuple[str, str], tmp_path: Path
) -> None:
    """In turns with the other frozen, or one after the other; agents that play may swap policies
    What it cannot learn by is refused."""
    rows = TABLE[algorithm].learns_from != "play"
    given = settings(algorithm, "separate", 1, models) | {"output_dir": str(tmp_path / "run")}
    kept = {key: value for key, value in TABLE[algorithm].config.items() if key not in LEARNING}
    swap = {} if rows or algorithm in ("cory", "sft") else {"swap_every": 1}
    config = ExperimentConfig(**given).merged(kept)
    config = config.merged({"schedule": {"order": order, **swap}, "batch_size": 8 if rows else 2})
    if order not in config.algorithm_settings().spec.orders:
        with pytest.raises(ConfigError, match=r"training\.schedule\.order"):
            plan_of(config, LiveObjects())
        return
    noted = Noted()
    run_to_end(build(config, LiveObjects(callbacks=[noted])))
    both = {"row", "column"}
    assert noted.moved == ([{"row"}, {"column"}] if order == "alternating" else [both, both])
    if swap:
        assert [spoke["row"] for spoke in noted.spoke] == ["row", "column"]


def test_every_algorithm_has_an_entry() -> None:
    """What is not in the table is neither tried here nor in `python -m benchmarks.learning`."""
    assert set(TABLE) == set(ALGORITHMS)
    assert {algorithm for algorithm, _ in REFUSED} <= set(ALGORITHMS)


def test_the_fast_combinations_cover_every_algorithm_and_binding() -> None:
    every = [parameter for parameter in covering() if parameter.values]
    fast = [parameter.values for parameter in every if not parameter.marks]
    assert len(every) == len(ALGORITHMS) * len(BINDINGS) * len(TURNS)
    assert [algorithm for algorithm, _, _ in fast] == ALGORITHMS
    assert {(b, t) for _, b, t in fast} == {(b, t) for b in BINDINGS for t in TURNS}
