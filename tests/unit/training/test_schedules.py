"""Who learns when, in which order and with which role, and that a run that stops in the middle of a
period goes on with whoever's turn it is."""

from pathlib import Path
from typing import Any

import pytest
import torch

from logged_rows import Stop, logged
from mrlm import ExperimentConfig, run_experiment
from mrlm.build.policies import LiveObjects, PolicyAssignment
from mrlm.build.run import build, plan_of
from mrlm.config import PolicyConfig, ScheduleConfig
from mrlm.core.errors import ConfigError
from mrlm.learn.schedule import Schedule
from mrlm.runs import run_to_end
from watched_runs import settings, watched, weights

pytestmark = pytest.mark.system


class One:
    """What a schedule sees of a learner."""

    def __init__(self, policy: str) -> None:
        self.policy = policy


# -- the schedule itself ---------------------------------------------------------------------------


def test_at_once_changes_nothing() -> None:
    learners = [One("a"), One("b"), One("c")]
    assert Schedule().stages(learners, 3, 0) == [learners]
    assert Schedule().rotation(17) == 0


def test_turns_last_a_period_and_come_round() -> None:
    schedule = Schedule("alternating", (frozenset("a"), frozenset("bc")), period=2)
    learners = [One("a"), One("b"), One("c")]
    found = ["".join(x.policy for x in schedule.stages(learners, i, 0)[0]) for i in range(7)]
    assert found == ["a", "a", "bc", "bc", "a", "a", "bc"]
    quick = Schedule("alternating", (frozenset("a"), frozenset("b"), frozenset()))
    found = [
        "".join(x.policy for stage in quick.stages(learners, i, 0) for x in stage) for i in range(4)
    ]
    assert found == ["a", "b", "", "a"]


def test_what_is_printed_of_a_schedule() -> None:
    assert str(Schedule()) == "simultaneous"
    turns = (frozenset("a"), frozenset("cb"))
    shown = str(Schedule("alternating", turns, period=2))
    assert shown == "alternating, every 2 iteration(s): a | b+c"
    swapped = Schedule("sequential", swap_every=3, roles=("x", "y"))
    assert str(swapped) == "sequential; x, y swap policies every 3 iteration(s)"


def test_one_after_the_other_in_an_order_that_the_seed_decides() -> None:
    schedule, learners = Schedule("sequential"), [One(name) for name in "abcd"]

    def order(seed: int) -> str:
        stages = schedule.stages(learners, 0, seed)
        assert all(len(stage) == 1 for stage in stages)
        return "".join(stage[0].policy for stage in stages)

    assert order(1) == order(1)
    assert len({order(seed) for seed in range(50)}) > 10
    assert {"".join(sorted(order(seed))) for seed in range(50)} == {"abcd"}


def test_nobody_learns_while_the_algorithm_waits() -> None:
    assert Schedule("sequential").stages([], 0, 0) == [] == Schedule().stages([], 0, 0)


def test_roles_are_swapped_every_five_steps() -> None:
    """Steps 0-4: A is the pioneer; 5-9: B; 10-14: A again."""
    schedule = Schedule(swap_every=5, roles=("pioneer", "observer"))
    cast = PolicyAssignment(
        {"pioneer": "A", "observer": "B"}, {"A": PolicyConfig(), "B": PolicyConfig()}
    )
    found = [
        cast.rotated(schedule.roles, schedule.rotation(step)).policy_of["pioneer"]
        for step in range(15)
    ]
    assert "".join(found) == "AAAAABBBBBAAAAA"


def test_three_roles_come_round_after_three_swaps() -> None:
    schedule = Schedule(swap_every=1, roles=tuple("xyz"))
    cast = PolicyAssignment(
        dict(zip("xyzj", "ABCJ", strict=True)), {name: PolicyConfig() for name in "ABCJ"}
    )
    casts = [cast.rotated(schedule.roles, schedule.rotation(step)) for step in range(4)]
    assert ["".join(each.policy_of.values()) for each in casts] == ["ABCJ", "BCAJ", "CABJ", "ABCJ"]


# -- what is refused -------------------------------------------------------------------------------

SHARED = {"policies": {"both": {}}}
REFUSALS = [
    ({"order": "alternating"}, SHARED, "only 'both' is trained"),
    ({"order": "sequential"}, SHARED, "only 'both' is trained"),
    ({"swap_every": 2}, SHARED, r"short \(both\), long \(both\)"),
    ({"period": 3}, {}, r"training\.schedule\.period: .*'simultaneous'"),
    ({"turns": [["short"], ["long"]]}, {}, r"training\.schedule\.turns: "),
    ({"order": "alternating", "turns": [["short"]]}, {}, "'long' has no turn"),
    ({"order": "alternating", "turns": [["short", "long"], []]}, {}, "a turn names no policy"),
    ({"order": "alternating", "turns": [["shrot"], ["long"]]}, {}, "did you mean 'short'"),
    ({"roles": ["short", "long"]}, {}, "set training.schedule.swap_every"),
    ({"swap_every": 2, "roles": ["short", "lnog"]}, {}, "did you mean 'long'"),
    ({"swap_every": 2, "roles": ["short", "short"]}, {}, "agents with different policies"),
]


@pytest.mark.parametrize(("schedule", "changes", "said"), REFUSALS)
def test_what_cannot_work_is_refused_in_one_sentence(schedule, changes, said) -> None:
    config = settings("ippo").merged({"training.schedule": schedule})
    config = config if not changes else ExperimentConfig(**{**config.given(), **changes})
    with pytest.raises(ConfigError, match=said) as caught:
        plan_of(config, LiveObjects())
    assert "\n" not in str(caught.value)


def test_rows_have_no_roles_to_swap() -> None:
    rows = [{"prompt": "2+2=", "chosen": "4", "rejected": "5"}] * 2
    config = settings("dpo", **{"training.schedule": {"swap_every": 1}, "data.dataset": rows})
    with pytest.raises(ConfigError, match="trains on a data set"):
        plan_of(config, LiveObjects())


def test_a_schedule_is_a_word() -> None:
    assert ScheduleConfig.model_validate("sequential").order == "sequential"
    config = ExperimentConfig(schedule="alternating")
    assert config.training.schedule.order == "alternating"
    assert ExperimentConfig(**config.resolved()).resolved() == config.resolved()


# -- runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [False, True])
def test_frozen_policies_are_played_and_not_trained(lora: bool, tmp_path: Path) -> None:
    own = {"lora": {"r": 2}} if lora else {}
    changes = {"policies": {"short": own, "long": own}, "ippo": {"update_epochs": 1}}
    config = settings("ippo", 5, **changes, output_dir=str(tmp_path / "run"))
    watch, history = watched(
        config.merged({"training.schedule": {"order": "alternating", "period": 2}})
    )
    turns = [{"short"}, {"short"}, {"long"}, {"long"}, {"short"}]
    assert watch.moved == watch.trained == turns
    assert all(set(spoke) == {"short", "long"} for spoke in watch.spoke)
    assert [sorted(k for k in row if k.startswith("loss/")) for row in history] == [
        [f"loss/{name}"] for turn in turns for name in turn
    ]


def test_a_critic_of_the_team_learns_in_every_turn(tmp_path: Path) -> None:
    config = settings("mappo", 2, schedule="alternating", output_dir=str(tmp_path / "run"))
    watch, history = watched(config.merged({"mappo.update_epochs": 1}))
    assert watch.moved == [{"short"}, {"long"}]
    assert all(row["value_loss"] > 0 for row in history)


@pytest.mark.parametrize("algorithm", ["grpo", "ippo"])
def test_one_after_the_other_is_at_once_where_nothing_is_carried(
    algorithm: str, tmp_path: Path
) -> None:
    found = []
    for order in ("simultaneous", "sequential"):
        config = settings(algorithm, schedule=order, output_dir=str(tmp_path / order))
        run = build(config)
        run_to_end(run)
        found.append(weights(run))
    assert all(torch.equal(found[0][name], found[1][name]) for name in ("short", "long"))


def test_agents_exchange_their_policies_and_learners_keep_them(tmp_path: Path) -> None:
    config = settings("ippo", 5, output_dir=str(tmp_path / "run"))
    watch, _ = watched(config.merged({"training.schedule": {"swap_every": 2}}))
    one, other = {"short": "short", "long": "long"}, {"short": "long", "long": "short"}
    assert watch.spoke == [one, one, other, other, one]
    assert watch.moved == [{"short", "long"}] * 5


def test_models_of_two_families_exchange_roles(tmp_path: Path, gpt2_path: str) -> None:
    """Each conversation is rendered for whoever speaks."""
    changes = {"policies": {"short": {}, "long": {"model": gpt2_path}}, "ippo.update_epochs": 1}
    config = settings("ippo", 2, **changes, output_dir=str(tmp_path / "run"))
    watch, history = watched(config.merged({"training.schedule.swap_every": 1}))
    assert [spoke["short"] for spoke in watch.spoke] == ["short", "long"]
    assert watch.moved == [{"short", "long"}] * 2
    assert len(history) == 2


# -- going on in the middle of a period ------------------------------------------------------------


SCHEDULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ippo": (
        {"order": "alternating", "period": 3},
        {"num_minibatches": 2, "critic": "separate", "rewards": "team", "critic_warmup": 2},
    ),
    "mappo": ({}, {"num_minibatches": 2, "update_epochs": 2, "critic_warmup": 4}),
    "magrpo": ({"order": "sequential", "swap_every": 2}, {}),
    "happo": ({}, {"update_epochs": 2}),
    "marft": ({"order": "alternating", "period": 2, "swap_every": 3}, {"update_epochs": 2}),
    "cory": ({}, {"swap_freq": 3, "update_epochs": 1}),
}
STOPPED = [
    pytest.param(
        name,
        *both,
        marks=[pytest.mark.slow] * (name in ("ippo", "mappo", "happo", "cory", "marft")),
    )
    for name, both in SCHEDULES.items()
]


@pytest.mark.parametrize(("algorithm", "schedule", "own"), STOPPED)
def test_a_run_stopped_within_a_period_goes_on_bit_by_bit(
    algorithm: str, schedule: dict[str, Any], own: dict[str, Any], tmp_path: Path
) -> None:
    policies = {"short": {}, "long": {"lora": {"r": 4, "dropout": 0.1}}}
    config = settings(algorithm, 7, policies=policies, evaluation={"episodes": 4, "every": 2})
    config = config.merged({"training.schedule": schedule, algorithm: own})
    whole = config.merged({"output_dir": str(tmp_path / "whole")})
    parts = config.merged({"output_dir": str(tmp_path / "parts")})
    run_experiment(whole)
    run_experiment(parts, callbacks=[Stop(1, 4)])
    run_experiment(parts, resume=tmp_path / "parts", callbacks=[Stop(1, 4)])
    run_experiment(parts, resume=tmp_path / "parts")
    expected = logged(tmp_path / "whole")
    assert [row["step"] for row in expected] == list(range(8))
    assert logged(tmp_path / "parts") == expected
