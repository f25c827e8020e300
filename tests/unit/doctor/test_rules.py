"""Every rule on histories that show what it looks for, and on ones that come close."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from mrlm.core import registry
from mrlm.core.errors import ConfigError, PluginError
from mrlm.doctor.alarm import Alarm
from mrlm.doctor.examination import Examination, make_rules
from mrlm.doctor.history import History
from mrlm.record.packing import pack_column, pack_ids

AGENTS = ("a", "b")
AGENT_SIGNS = (("a", 1), ("b", -1))
Row = dict[str, Any]


def noise(count: int, size: float = 0.02) -> np.ndarray:
    return np.random.default_rng(0).normal(0, size, count)


def rows(count: int = 24, /, **columns: Any) -> list[Row]:
    """Rows of a healthy run of two agents with policies of their own, with other columns; `__` is
    for `/`."""
    rising = np.linspace(0.3, 0.6, count) + noise(count)
    healthy: dict[str, Any] = {
        "reward/mean": rising,
        "reward/std": 0.4,
        "grad_norm": 1.0,
        "learning_rate": 1e-4,
        "tokens/trained": 100.0,
        "completion_length/cut": 0.0,
        "completion_length/mean": 10.0,
        **{f"advantage/{agent}/zero": 0.3 for agent in AGENTS},
        **{f"advantage/{agent}/std": 0.5 for agent in AGENTS},
        **{f"reward/{agent}/mean": rising for agent in AGENTS},
        **{f"entropy/{agent}": np.linspace(1.0, 0.5, count) for agent in AGENTS},
        **{f"mismatch_kl/{agent}": 1e-9 for agent in AGENTS},
        **{f"completion_length/{agent}/mean": 10.0 for agent in AGENTS},
        **{f"tokens/{agent}/share": 0.5 for agent in AGENTS},
    }
    healthy |= {name.replace("__", "/"): column for name, column in columns.items()}
    table = {
        name: np.broadcast_to(np.asarray(column, float), count) for name, column in healthy.items()
    }
    return [
        {"step": step + 1, **{name: column[step] for name, column in table.items()}}
        for step in range(count)
    ]


def turn(text: str = "hi", advantage: float = 0.5, **more: Any) -> Row:
    return {
        "message": 1,
        "finish_reason": "stop",
        "sampling": {},
        "trained": True,
        "advantage": advantage,
        "tokens": len(text) + 1,
        "text_": text,
        **more,
    }


def with_tokens(ids: Sequence[int], **columns: Sequence[float] | np.ndarray) -> Row:
    packed = {name: pack_column(column, len(ids)) for name, column in columns.items()}
    return {"ids": pack_ids(ids), "columns": packed}


def episode(step: int, number: int, turns: dict[str, Row], **more: Any) -> Row:
    def agent(name: str, own: Row) -> Row:
        messages = [{"role": own.get("role_", "user"), "content": "go"}]
        messages.append({"role": "assistant", "content": own["text_"]})
        return {"policy": name, "messages": messages, "turns": [own]}

    return {
        "step": step,
        "id": f"train/made/{number}/0",
        "status": "done",
        "reward": 1.0,
        "agents": {name: agent(name, own) for name, own in turns.items()},
        **more,
    }


def episodes(
    count: int, make: Callable[[int], dict[str, Row]], **more: Any
) -> dict[int, list[Row]]:
    return {
        step: [episode(step, number, make(number), **more) for number in range(8)]
        for step in range(1, count + 1)
    }


def alarms(
    metrics: Iterable[Row],
    played: dict[int, list[Row]] | None = None,
    twin: Iterable[Row] | None = None,
    **settings: Any,
) -> list[Alarm]:
    examination = Examination(make_rules(settings), None if twin is None else History(twin))
    found: list[Alarm] = []
    played = played or episodes(
        40, lambda number: {name: turn("hi" * (1 + number)) for name in AGENTS}
    )
    for row in metrics:
        examination.see(played.get(row["step"], ()))
        found += examination.examine(row)
    return found


def rules_of(found: Iterable[Alarm]) -> set[tuple[str, str | None]]:
    return {(alarm.rule, alarm.agent or alarm.policy) for alarm in found}


def both(name: str, value: Any) -> dict[str, Any]:
    return {name.replace("*", agent): value for agent in AGENTS}


FLAT = 0.5 + noise(24, 0.01)
EARLY = np.arange(24) < 3


def test_a_healthy_run_has_no_alarm() -> None:
    assert alarms(rows(60)) == []


def test_nothing_is_learned() -> None:
    nothing = both("advantage__*__zero", 1.0) | {"reward__mean": 0.0}
    (found,) = alarms(rows(**nothing))
    assert (found.rule, found.step, found.since) == ("nothing_learned", 8, 1)
    assert found.evidence and found.do
    one = {"advantage__a__zero": 1.0, "reward__mean": 0.5}
    assert alarms(rows(**one)) == []
    solved = np.where(np.arange(24) < 12, np.linspace(0.2, 1.0, 24) * 2 - 0.2, 1.0).clip(0, 1)
    late = np.arange(24) >= 12
    tied = both("advantage__*__zero", late) | {"reward__std": np.where(late, 0.0, 0.4)}
    assert alarms(rows(**tied, reward__mean=solved)) == []


def test_no_gradient_and_no_token() -> None:
    assert rules_of(alarms(rows(grad_norm=0.0, reward__mean=FLAT))) == {("nothing_learned", None)}
    dropped = {"tokens__trained": 0.0, "frac_dropped_pairs": 1.0, "reward__mean": FLAT}
    (found,) = alarms(rows(**dropped))
    assert (found.rule, found.step, found.since) == ("nothing_learned", 8, 1)


def test_weights_that_do_not_move() -> None:
    """A learning rate that is far too small: no step so far has changed the weights."""
    (found,) = alarms(rows(weight_change=2e-8, reward__mean=FLAT))
    assert (found.rule, found.step, found.since) == ("nothing_learned", 8, 1)
    assert "learning rate 0.0001" in found.because
    assert alarms(rows(weight_change=1e-6, reward__mean=FLAT)) == []
    once = np.where(np.arange(24) == 2, 1e-5, 0.0)  # it has moved, and is solved or waits since
    assert alarms(rows(weight_change=once, reward__mean=FLAT)) == []
    rising = np.linspace(1e-9, 1e-7, 24)
    assert alarms(rows(weight_change=2e-8, learning_rate=rising, reward__mean=FLAT)) == []
    one = {"weight_change__a": 1e-5, "weight_change__b": 0.0, **both("grad_norm__*", 1.0)}
    (found,) = alarms(rows(weight_change=5e-6, **one, reward__mean=FLAT))
    assert "weight_change/b" in found.because
    unpaid = one | {"grad_norm__b": 0.0}  # an agent without advantages is not trained
    assert alarms(rows(weight_change=5e-6, **unpaid, reward__mean=FLAT)) == []


def guesses(rate: float, deaf: bool, name: str = "right", count: int = 40) -> dict[int, list[Row]]:
    """Groups of four, in which `a` gives hints that differ and `b` names a word: the same one
    whatever the hint is, or another for each, and in a part of the groups the right one."""

    def row(step: int, group: int, number: int) -> Row:
        hint, word = f"hint {number}", f"word {group if deaf else number}"
        right = float(group < rate * 8)
        parts = {
            f"{agent}/{part}": x for agent in AGENTS for part, x in ((name, right), ("short", 1.0))
        }
        found = episode(step, 0, {"a": turn(hint), "b": turn(word)}, metrics=parts)
        found["agents"]["b"]["messages"][0]["content"] = f"Hint: {hint}. Which word?"
        return found | {"id": f"train/made/{8 * step + group}/{number}", "reward": 0.2 + right}

    groups = [(group, number) for group in range(8) for number in range(4)]
    return {step: [row(step, *each) for each in groups] for step in range(1, count + 1)}


@pytest.mark.parametrize("name", ["right", "guessed"])
def test_a_plateau_of_ties_is_no_solved_task(name: str) -> None:
    """The listener names the first word of the list: the reward is the best so far."""
    late = np.arange(40) >= 20
    flat = np.where(late, 0.45, np.linspace(0.0, 0.9, 40)) + noise(40, 0.01)
    plateau = both("advantage__*__zero", np.where(late, 1.0, 0.2)) | {
        "reward__mean": flat,
        "reward__std": 0.43,
        **{f"reward__{agent}__{name}": flat - 0.2 for agent in AGENTS},
    }
    found = alarms(rows(40, **plateau), guesses(0.25, deaf=True, name=name))
    assert {("nothing_learned", None), ("lazy_agent", "b")} <= rules_of(found)
    tied = next(alarm for alarm in found if alarm.rule == "nothing_learned")
    assert (tied.since, tied.step) == (21, 28) and "since step 21" in tied.because
    assert "all rewards are equal, 0.4" in tied.because and f"({name} 0.2" in tied.because
    deaf = next(alarm for alarm in found if alarm.rule == "lazy_agent")
    assert "what a writes has no effect" in deaf.because
    heard = alarms(rows(40, **plateau), guesses(0.25, deaf=False, name=name))
    assert rules_of(heard) == {("nothing_learned", None)}
    bare = {key: x for key, x in plateau.items() if name not in key}  # tasks have other rewards
    assert ("nothing_learned", None) in rules_of(alarms(rows(40, **bare)))


def test_a_solved_game_of_hints_has_no_alarm() -> None:
    """Siblings answer alike there, too; success is 1, or no component tells and all tasks have the
    reward that rose to its best."""
    up = np.linspace(0.2, 2.0, 40).clip(0, 1.2)
    done = both("advantage__*__zero", np.where(up >= 1.2, 1.0, 0.2)) | {"reward__mean": up}
    done |= {"reward__std": np.where(up >= 1.2, 0.0, 0.4)}
    rates = {f"reward__{agent}__right": up - 0.2 for agent in AGENTS}
    assert alarms(rows(40, **done, **rates), guesses(1.0, deaf=True)) == []
    assert alarms(rows(40, **done), guesses(1.0, deaf=True)) == []


@pytest.mark.parametrize(
    ("ties", "correct", "alarmed"),
    [  # of runs of a pretrained model: one agent, and a team on its way
        ([1, 1, 1, 0.94, 1, 1, 1, 1, 0.94, 0.94], [0, 0, 0, 0.03, 0, 0, 0, 0, 0.02, 0.02], True),
        ([0.94, 1, 1, 1, 1, 0.94, 0.94, 1, 1, 0.88], [0.02, 0, 0, 0, 0, 0.02, 0.02, 0, 0, 0], True),
        ([0.62, 1, 1, 0.88, 1, 0.75, 0.62, 0.88, 1, 1], [0] * 10, True),  # a chain
        ([0.75, 0.62, 0.5, 0.5, 0.75, 0.88, 0.62, 0.44, 0.5, 0.38], [0] * 10, False),
        ([1, 0.94, 1, 1, 1, 1, 1, 1, 0.94, 1], [0.9] * 10, False),
    ],
)
def test_hardly_any_group_differs_and_none_succeeds(
    ties: list[float], correct: list[float], alarmed: bool
) -> None:
    zeros: Any = {f"advantage__{agent}__zero": ties for agent in AGENTS}
    columns = zeros | {f"reward__{agent}__correct": correct for agent in AGENTS}
    history = rows(10, **columns, reward__mean=correct)
    assert rules_of(alarms(history)) == ({("nothing_learned", None)} if alarmed else set())


def test_success_that_never_came() -> None:
    never = {"reward__a__correct": 0.0, "reward__mean": np.where(np.arange(60) < 9, -0.2, 0.0)}
    never["reward__mean"] = never["reward__mean"] + noise(60, 0.005)
    found = alarms(rows(60, **never))
    assert rules_of(found) == {("nothing_learned", None)} and "sft" in found[0].do
    assert "correct was at most 0 in" in found[0].because
    rising = {"reward__mean": np.linspace(-0.3, 0.3, 60)}  # on its way
    assert alarms(rows(60, **never | rising)) == []
    once = np.where(np.arange(60) == 7, 0.1, 0.0)
    late = rules_of(alarms(rows(60, **never | {"reward__a__correct": once})))
    assert ("nothing_learned", None) not in late


def test_the_top_of_the_range_is_solved() -> None:
    """Also in a run that begins there."""
    done = both("advantage__*__zero", 1.0) | both("reward__*__mean", 1.0) | {"reward__mean": 1.0}
    for env in ("relay", "writing", "own:Env"):
        config = {"environments": [{"env_type": env}]}
        examination = Examination(make_rules(), config=config)
        assert {each.rule for row in rows(**done) for each in examination.examine(row)} == (
            set() if env == "relay" else {"nothing_learned"}
        )


VALUES = {"explained_variance": 0.0, "value_error": 0.6, "return_variance": 0.25}


def critic(**columns: Any) -> list[Row]:
    return rows(**{f"{name}__{agent}": x for name, x in columns.items() for agent in AGENTS})


def test_a_critic_learns_nothing() -> None:
    found = alarms(critic(**VALUES))
    assert rules_of(found) == {("critic", "a"), ("critic", "b")} and found[0].step == 12
    assert alarms(critic(**VALUES | {"explained_variance": 0.3})) == []
    assert alarms(critic(**VALUES | {"value_error": np.geomspace(2.0, 0.1, 24)})) == []


def test_a_critic_is_not_blamed_where_returns_hardly_vary() -> None:
    """A solved game: the rest of the values' error is tiny, and that of the returns is tinier."""
    early = np.arange(24) < 4
    left = {"explained_variance": 0.0, "value_error": np.where(early, 0.3, 1e-6)}
    for last in (1e-7, 0.0):
        known = critic(**left, return_variance=np.where(early, 0.25, last))
        assert (
            alarms([row | {"reward/std": 0.4 if k < 4 else 0.0} for k, row in enumerate(known)])
            == []
        )


def test_a_critic_is_compared_with_the_returns_and_not_with_the_reward() -> None:
    """Returns in units of their own: values are as near as their mean, and the reward varies
    little."""
    scaled = VALUES | {"value_error": 0.98, "return_variance": 0.98}
    quiet = [row | {"reward/std": 0.1} for row in critic(**scaled)]
    assert alarms(quiet) == []


def test_the_reward_rises_and_the_truth_falls() -> None:
    up, down = (
        np.linspace(0.3, 0.9, 24) + noise(24, 0.01),
        np.linspace(0.6, 0.2, 24) + noise(24, 0.01),
    )
    hacked = {"reward__mean": up, "reward__a__bonus": up}
    (found,) = alarms(rows(**hacked, reward__a__correct=down))
    assert found.rule == "reward_hacking" and "falls" in found.because and found.step <= 20
    assert alarms(rows(**hacked, reward__a__correct=up)) == []
    assert alarms(rows(**hacked, reward__a__other=down)) == []  # no component is the truth
    named: Any = {"reward_hacking": {"truth": "other"}}
    assert rules_of(alarms(rows(**hacked, reward__a__other=down), **named)) == {
        ("reward_hacking", None)
    }
    (found,) = alarms(rows(**hacked | {"reward__mean": FLAT}, reward__a__correct=down))
    assert "bonus rises" in found.because  # the reward itself stays where it is
    slow = np.where(np.arange(24) < 8, 0.5, np.linspace(0.62, 0.2, 24)) + noise(24, 0.06)
    wide = {"reward__mean": np.linspace(0.5, 2.0, 24) + noise(24, 0.2)}
    assert rules_of(alarms(rows(**wide, reward__a__correct=slow))) == {("reward_hacking", None)}
    still = 0.9 + np.where(np.arange(24) < 4, -0.5, 0.0) + np.where(np.arange(24) > 12, -0.01, 0.0)
    assert alarms(rows(**hacked, reward__a__correct=still)) == []  # a hundredth of what it gained
    flat = 0.5 + noise(24, 0.01)
    flat[0], flat[-1] = 0.4, 0.5
    assert rules_of(alarms(rows(**hacked, reward__a__correct=flat))) == {("reward_hacking", None)}
    assert alarms(rows(**hacked, reward__a__correct=0.0)) == []  # not yet learned


def test_fewer_wins_of_players_who_meet_each_other_are_no_alarm() -> None:
    """They stop losing by mistakes, so that more games are drawn."""
    up, fewer = np.linspace(-0.25, -0.1, 24) + noise(24, 0.01), np.linspace(0.5, 0.4, 24)
    wins: Any = {f"reward__{agent}__won": fewer + sign * noise(24) for agent, sign in AGENT_SIGNS}
    losses: Any = {
        f"reward__{agent}__lost": fewer - sign * noise(24) for agent, sign in AGENT_SIGNS
    }
    assert alarms(rows(reward__mean=up, **wins, **losses)) == []
    assert ("reward_hacking", None) in rules_of(alarms(rows(reward__mean=up, **wins)))


def test_a_mute_agent() -> None:
    silent = episodes(24, lambda n: {"a": turn("hi" * (1 + n)), "b": turn("")})
    found = alarms(rows(), silent)
    assert rules_of(found) == {("lazy_agent", "b")} and found[0].step == 8
    half = episodes(24, lambda n: {"a": turn("hi" * (1 + n)), "b": turn("hi" * (n % 2))})
    assert alarms(rows(), half) == []


def test_an_ignored_agent() -> None:
    assert rules_of(alarms(rows(advantage__b__std=0.001))) == {("lazy_agent", "b")}
    assert alarms(rows(advantage__b__std=0.1)) == []
    assert alarms(rows(**both("advantage__*__std", 0.001))) == []


def test_an_agent_whose_messages_have_no_effect() -> None:
    """Influence and the cost of silence, as evaluations with `effects` measure them."""
    every = np.where(np.arange(24) % 4 == 0, 1.0, np.nan)
    effects = {
        "eval__influence__a__c": 0.4 * every,
        "eval__influence__b__c": 1e-4 * every,
        "eval__marginal__a": 0.3 * every,
        "eval__marginal__b": 0.0 * every,
        "eval__reward__std": 0.4 * every,
    }
    (found,) = alarms(rows(**effects))
    assert (found.rule, found.agent, found.since, found.step) == ("lazy_agent", "b", 1, 13)
    assert "silence" in found.because and found.evidence
    for name, value in {
        "eval__influence__b__c": 0.05,  # it is read
        "eval__influence__a__c": 1e-3,  # not yet anyone is
        "eval__marginal__b": 0.1,  # the team needs it
    }.items():
        assert alarms(rows(**effects | {name: value * every})) == [], name
    once = np.where(np.arange(24) % 8 == 0, 0.05, 1e-4) * every
    assert alarms(rows(**effects | {"eval__influence__b__c": once})) == []
    last = {name: value for name, value in effects.items() if name != "eval__influence__b__c"}
    assert alarms(rows(**last)) == []  # no agent acts after it


def test_a_listener_that_ignores() -> None:
    """One speaker and one listener; the values are those of evaluations of a real model."""
    every = np.where(np.arange(24) % 4 == 0, 1.0, np.nan)
    effects = {
        "eval__changed__a__b": 0.0 * every,
        "eval__influence__a__b": 0.17 * every,
        "eval__marginal__a": 0.0 * every,
        "eval__reward__std": 0.4 * every,
    }
    (found,) = alarms(rows(**effects))
    assert (found.rule, found.agent, found.since, found.step) == ("lazy_agent", "b", 1, 13)
    assert "do not depend on what a writes" in found.because
    for name, value in {
        "eval__changed__a__b": 0.25,  # it listens
        "eval__marginal__a": 0.1,  # the team needs what it hears
        "eval__influence__a__b": 0.0,  # it is not shown what a writes
    }.items():
        assert alarms(rows(**effects | {name: value * every})) == [], name
    assert alarms(rows(**effects, reward__b__correct=1.0)) == []  # solved all the same


def test_a_role_captures_a_policy() -> None:
    every = np.where(np.arange(24) % 4 == 0, 1.0, np.nan)
    shares = {"gradient_share__a": 0.97 * every, "gradient_share__b": 0.03 * every}
    cosine = {"gradient_cosine__a__b": -0.1 * every}
    found = alarms(rows(**shares, **cosine))
    assert rules_of(found) == {("capture", "a")} and found[0].step <= 20
    assert alarms(rows(**shares, gradient_cosine__a__b=0.8 * every)) == []
    assert alarms(rows(**shares, **cosine, tokens__a__share=0.9)) == []
    even = {"gradient_share__a": 0.6 * every, "gradient_share__b": 0.4 * every}
    assert alarms(rows(**even, **cosine)) == []


def test_the_reward_falls() -> None:
    fall = np.where(np.arange(24) < 8, 0.7, 0.2) + noise(24)
    (found,) = alarms(rows(reward__mean=fall))
    assert found.rule == "cliff" and found.since == 9 and found.step <= 20
    dip = np.where((np.arange(24) > 8) & (np.arange(24) < 12), 0.5, 0.7) + noise(24)
    assert alarms(rows(reward__mean=dip)) == []


def test_a_solved_task_may_move_a_little() -> None:
    solved = np.where(np.arange(60) < 12, np.linspace(0.2, 3.0, 60), 0.88).clip(0, 0.88)
    solved[40:] -= 0.004
    spread = np.where(np.arange(60) < 12, 0.3, 0.001)
    assert alarms(rows(60, reward__mean=solved, reward__std=spread)) == []


def test_one_bad_step_after_steps_of_equal_rewards_is_no_fall() -> None:
    """The noise from step to step, a median, is 0 there."""
    reward = np.where(np.arange(60) < 25, np.linspace(0.2, 1.83, 60), 0.878).clip(0, 0.878)
    spread = np.where(np.arange(60) < 12, 0.3, 0.01)
    reward[51] = 0.729
    assert alarms(rows(60, reward__mean=reward, reward__std=spread)) == []
    reward[51:] = 0.729
    (found,) = alarms(rows(60, reward__mean=reward, reward__std=spread))
    assert found.rule == "cliff" and found.since == 52 and found.step <= 56


def test_the_held_out_reward_falls() -> None:
    evals = np.full(24, np.nan)
    evals[::4] = [0.3, 0.6, 0.7, 0.3, 0.3, 0.25]
    counts = {"eval__reward__std": 0.45, "eval__episodes__count": 200.0}
    (found,) = alarms(rows(eval__reward__mean=evals, **counts))
    assert found.rule == "cliff" and "held-out" in found.because
    evals[::4] = [0.3, 0.6, 0.7, 0.68, 0.71, 0.66]
    assert alarms(rows(eval__reward__mean=evals, **counts)) == []


@pytest.mark.parametrize(("last", "what"), [(0.01, "fell"), (2.5, "rose")])
def test_entropy(last: float, what: str) -> None:
    lost = {"entropy__b": np.where(EARLY, 1.0, last), "reward__mean": FLAT}
    lost["entropy__b"] = np.where(np.arange(24) < 8, 1.0, last)
    found = alarms(rows(**lost))
    assert rules_of(found) == {("entropy", "b")} and what in found[0].because
    gain = np.linspace(0.3, 0.9, 24) + noise(24)
    assert alarms(rows(**lost | {"reward__mean": gain})) == []
    assert alarms(rows(reward__mean=FLAT)) == []
    imitated = both("advantage__*__std", 0.0)
    assert "entropy" not in {rule for rule, _ in rules_of(alarms(rows(**lost | imitated)))}


def test_the_sampler_is_not_the_trainer() -> None:
    found = alarms(rows(mismatch_kl__a=np.linspace(0, 0.02, 24)))
    assert rules_of(found) == {("sampler", "a")} and found[0].step <= 5
    assert alarms(rows(**both("mismatch_kl__*", 0.01 + noise(24, 0.002)))) == []  # 16 bits
    assert alarms(rows(mismatch_kl__a=np.where(np.arange(24) == 9, 0.02, 1e-9))) == []
    assert rules_of(alarms(rows(mismatch_kl__b=0.2))) == {("sampler", "b")}


def drifting(late: float, early: float, old: float | None = None, count: int = 15) -> Any:
    """Episodes whose engine and trainer differ by so much late and early in completions."""
    rng = np.random.default_rng(0)
    third, sampled = count // 3, rng.uniform(-3, -0.5, count).round(1)
    gaps = np.array([early] * third + [late] * (count - third))
    columns = {"logprobs": sampled, "last_logprobs": sampled - gaps}
    columns |= {} if old is None else {"old_logprobs": sampled - old}
    tokens = {"tokens": count, **with_tokens([5] * (count - 1) + [2], **columns)}
    return episodes(24, lambda n: {"a": turn("hi" * (1 + n), **tokens), "b": turn()})


def test_the_sampler_differs_late_in_completions() -> None:
    """Above rounding from the first step on, so that only positions tell it from 16 bits."""
    known = {"mismatch_kl__a": 0.01, "optimizer_steps": 1.0}
    (found,) = alarms(rows(**known), drifting(0.3, 0.02))
    assert (found.rule, found.agent, found.step) == ("sampler", "a", 3)
    assert "last third" in found.because and found.evidence
    assert alarms(rows(**known), drifting(0.1, 0.1)) == []  # 16 bits round at all positions
    assert alarms(rows(**known), drifting(0.3, 0.02, count=9)) == []  # too short
    assert alarms(rows(**known | {"mismatch_kl__a": 1e-9}), drifting(0.3, 0.02)) == []
    several = known | {"optimizer_steps": 4.0}  # the last pass has other weights
    assert alarms(rows(**several), drifting(0.3, 0.02)) == []
    assert alarms(rows(**several), drifting(0.3, 0.02, old=0.1)) == []
    assert alarms(rows(**known), drifting(0.3, 0.02, old=0.1)) == []
    ranks = {name: columns for name, columns in drifting(0.3, 0.02).items() if name % 2}
    assert len(alarms(rows(**known), ranks)) == 1  # a record of every second step


def test_a_length_bias() -> None:
    grown = {"completion_length__a__mean": np.linspace(10, 40, 24), "reward__mean": FLAT}
    biased = episodes(24, lambda n: {"a": turn("x" * n, n / 8 - 0.5), "b": turn()})
    found = alarms(rows(**grown), biased)
    assert rules_of(found) == {("length_bias", "a")} and found[0].step <= 20
    assert alarms(rows(**grown)) == []  # advantages do not depend on the length
    assert (
        alarms(rows(completion_length__a__mean=grown["completion_length__a__mean"]), biased) == []
    )


def test_answers_that_are_cut() -> None:
    cut = np.where(np.arange(24) < 6, 0.0, 0.9)
    assert rules_of(alarms(rows(**{"completion_length__cut": cut, "reward__mean": FLAT}))) == {
        ("length_bias", None)
    }
    assert alarms(rows(**{"completion_length__cut": 1.0, "reward__mean": FLAT})) == []


def test_the_stop_token_is_masked() -> None:
    masked = with_tokens([5, 6, 2], advantages=[0.5, 0.5, 0.0])
    whole = with_tokens([5, 6, 2], advantages=[0.5, 0.5, 0.5])
    found = alarms(rows(), episodes(24, lambda n: {"a": turn(**masked), "b": turn(**whole)}))
    assert rules_of(found) == {("template", "a")} and found[0].step == 2
    assert alarms(rows(), episodes(24, lambda n: {name: turn(**whole) for name in AGENTS})) == []


def test_completions_end_in_no_stop_token() -> None:
    bare = episodes(24, lambda n: {"a": turn(**with_tokens([5, n])), "b": turn()})
    assert rules_of(alarms(rows(), bare)) == {("template", "a")}
    stops: Any = {"sampling": {"stop": ["\n"]}}
    words = episodes(24, lambda n: {"a": turn(**with_tokens([5, n]), **stops), "b": turn()})
    assert alarms(rows(), words) == []


def test_marks_of_a_template_and_no_tokens() -> None:
    marked = episodes(24, lambda n: {"a": turn("hi<|im_end|>\n<|im_start|>user"), "b": turn()})
    assert rules_of(alarms(rows(), marked)) == {("template", "a")}
    once = episodes(24, lambda n: {"a": turn("x<|im_end|>" if n == 3 else "[x] < y"), "b": turn()})
    assert alarms(rows(), once) == []


def test_no_token_is_trained() -> None:
    late = np.where(np.arange(24) < 12, 100.0, 0.0)
    bare = {"tokens__trained": late, "reward__mean": FLAT}
    assert rules_of(alarms(rows(**bare))) == {("template", None)}
    for name, value in {
        "frac_dropped_pairs": 1.0,  # pairs without a difference train nothing
        "frac_filtered": 1.0,
        "good_answers": 0.0,
        "num_groups_trained": 0.0,
    }.items():
        chosen = np.where(late > 0, 0.5, value)
        assert alarms(rows(**bare | {name: chosen})) == [], name
    half = {"frac_dropped_pairs": np.where(late > 0, 0.0, 0.5)}  # the other half is not trained
    assert rules_of(alarms(rows(**bare | half))) == {("template", None)}


def test_one_shape_of_prompts_differs() -> None:
    def far(number: int) -> dict[str, Row]:
        gap = 3.0 if number % 2 else 0.0
        columns = with_tokens([5, 2], logprobs=[-1.0, -1.0], last_logprobs=[-1.0 - gap] * 2)
        return {"a": turn(**columns, role_="tool" if number % 2 else "user"), "b": turn()}

    found = alarms(rows(), episodes(24, far))
    assert rules_of(found) == {("template", "a")} and "tool" in found[0].because


def test_stale_and_starved_data() -> None:
    assert rules_of(alarms(rows(lag__mean=12.0))) == {("stale_data", None)}
    assert alarms(rows(lag__mean=3.0)) == []
    assert rules_of(alarms(rows(episodes__failed=0.5))) == {("stale_data", None)}
    assert alarms(rows(episodes__failed=np.where(EARLY, 0.5, 0.0))) == []
    starved = {"frac_zero_variance": 0.985, "reward__mean": FLAT}
    assert rules_of(alarms(rows(**starved))) == {("stale_data", None)}
    assert alarms(rows(**starved | {"frac_zero_variance": 0.8})) == []
    played = {"num_groups_played": 200.0, "num_groups_trained": 2.0, "reward__mean": FLAT}
    assert rules_of(alarms(rows(**played))) == {("stale_data", None)}


def test_training_on_one_task() -> None:
    def played(train: int, held_out: int, text: bool = False) -> dict[int, list[Row]]:
        """Two groups of two in each step, and an evaluation every fourth step, of so many tasks."""
        found: dict[int, list[Row]] = {}
        for step in range(1, 25):
            for number in range(2 * step, 2 * step + 2):
                for k in range(2):
                    row = episode(step, 0, {name: turn() for name in AGENTS})
                    task = {"prompt": f"task {number % train}"}
                    name = number if text else number % train
                    row |= {"id": f"train/made/{number}/{k}", "task_id": f"t-{name}", "task": task}
                    found.setdefault(step, []).append(row)
            for number in range(8) if step % 4 == 0 else ():
                row = episode(step, 0, {name: turn() for name in AGENTS})
                task = {"prompt": f"held out {number % held_out}"}
                name = number if text else number % held_out
                row |= {"id": f"eval/made/{number}/0", "task_id": f"e-{name}", "task": task}
                found[step].append(row)
        return found

    (found,) = alarms(rows(), played(1, 8))
    assert (found.rule, found.step) == ("stale_data", 4) and "8 groups" in found.because
    assert found.evidence and all(each.id.startswith("train/") for each in found.evidence)
    assert rules_of(alarms(rows(), played(1, 8, text=True))) == {("stale_data", None)}
    assert rules_of(alarms(rows(), played(2, 8))) == {("stale_data", None)}
    assert alarms(rows(), played(3, 8)) == []  # each five times, in the steps that rules see
    assert alarms(rows(), played(1, 1)) == []  # a game of one state
    assert alarms(rows(), played(1, 1, text=True)) == []
    assert alarms(rows(), played(40, 8)) == []
    from_rows = {
        step: [row | {"task": {"prompt": []}} if "train/" in row["id"] else row for row in those]
        for step, those in played(40, 8).items()
    }
    assert alarms(rows(), from_rows) == []  # a row of a data set asks nothing


def test_self_play_in_circles() -> None:
    every = np.where(np.arange(24) % 4 == 0, 1.0, np.nan)
    flat = {"rating__a": (1000 + noise(24, 20)) * every, "opponents__cycles": 0.5 * every}
    assert rules_of(alarms(rows(**flat))) == {("circles", "a")}
    assert alarms(rows(**flat | {"opponents__cycles": 0.0 * every})) == []
    rising = np.linspace(1000, 1400, 24) * every
    assert alarms(rows(**flat | {"rating__a": rising})) == []


def test_a_team_loses_to_one_agent() -> None:
    evaluated = {"eval__reward__std": 0.4, "eval__episodes__count": 200.0}
    tokens = {"tokens__total": np.arange(1, 25) * 1000.0}
    team = rows(eval__reward__mean=0.4, **tokens, **evaluated)
    one = rows(eval__reward__mean=0.7, **tokens, **evaluated)
    assert rules_of(alarms(team, twin=one)) == {("centralised", None)}
    assert alarms(one, twin=team) == [] and alarms(team) == []
    fewer = [row | {"tokens/total": row["tokens/total"] * 100} for row in one]
    assert alarms(team, twin=fewer) == []  # never with equal tokens


def test_a_rule_can_be_set_and_switched_off() -> None:
    mute = episodes(24, lambda n: {"a": turn("hi" * (1 + n)), "b": turn("")})
    assert alarms(rows(), mute, lazy_agent=False) == []
    (found,) = alarms(rows(), mute, lazy_agent={"steps": 4})
    assert found.step == 4
    with pytest.raises(
        ConfigError, match=r"doctor_rules.entropy: 'colapse' .* did you mean 'collapse'"
    ):
        make_rules({"entropy": {"colapse": 0.1}})
    with pytest.raises(PluginError, match="did you mean 'entropy'"):
        make_rules({"entropie": {}})


def test_every_rule_says_what_to_do() -> None:
    assert len(registry.names("rules")) == 13
    for name, rule in make_rules().items():
        assert rule.do and registry.describe("rules", name)
