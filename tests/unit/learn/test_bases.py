"""The bases of algorithms: what follows from their settings, which settings change nothing, what is
refused, and what they log and save."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from mrlm.algorithms.grpo import GRPO
from mrlm.algorithms.ippo import IPPO
from mrlm.algorithms.mappo import MAPPO
from mrlm.algorithms.ppo import PPO
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.rounds import Rounds
from mrlm.core.sync_async import run_async
from mrlm.core.types import Rollout, SamplingParams, Task, Turn
from mrlm.learn.bases.actor_critic import ActorCritic
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.bases.spec import CriticPlan, SamplingPlan, Spec, Topology
from mrlm.learn.bases.steps import CarryOver, GroupFilter, Refinement, carry, keeps, refine
from mrlm.learn.data.batch import Batch, Outputs, merge, pack

REFERENCE = "ref_logprobs"


# -- what follows from settings --------------------------------------------------------------------


def test_a_divergence_in_the_reward_leaves_the_loss_alone() -> None:
    """It needs a reference all the same; samples without an advantage may be left out, where no
    head on the policy learns from them."""
    assert PPO.kl_in == "reward"
    one, other = (PPO(kl_coef=coef, critic="separate") for coef in (0.0, 0.5))
    assert other.spec.columns == {"values", REFERENCE} and other.spec.ignores_zero
    assert not PPO().spec.ignores_zero
    losses = [algorithm.loss(*said()) for algorithm in (one, other)]
    assert losses[0].item() == losses[1].item() != 0.0
    assert "kl" not in losses[1].metrics
    assert "kl" in GRPO(kl_coef=0.5).loss(*said()).metrics


NEW = [-1.0, -2.0, -0.5, -1.5]
RATIOS = [0.5, 1.25, 1.0, 1.6]
ADVANTAGES = [1.0, -2.0, 0.5, 3.0]


def said(**sampling: Any) -> tuple[Batch, Outputs]:
    """Two turns of two tokens, with ratios to what was sampled."""
    found = []
    for at in (0, 2):
        turn = Turn("a", "p", [1, at], [2, 3], sampling=SamplingParams(**sampling))
        logs = [math.log(ratio) for ratio in RATIOS[at : at + 2]]
        turn.logprobs = [new - log for new, log in zip(NEW[at : at + 2], logs, strict=True)]
        turn.advantages, turn.ref_logprobs = ADVANTAGES[at : at + 2], -0.7
        turn.returns = turn.values = 0.0
        found += merge([turn], unit=at, rollout=at)
    return pack(found), Outputs(torch.tensor(NEW), torch.ones(4), torch.zeros(4))


@pytest.mark.parametrize(
    ("settings", "weights", "clipped"),
    [
        ({"cispo_cap": 1.5}, [0.5, 1.25, 1.0, 1.5], 1),
        ({"cispo_cap": 1.6001}, [0.5, 1.25, 1.0, 1.6], 0),
        ({"cispo_cap": 1.0}, [0.5, 1.0, 1.0, 1.0], 2),  # what is at it is not cut
        ({"cispo_cap_mode": "relative", "clip_range": 0.3}, [0.7, 1.25, 1.0, 1.3], 2),
        (
            {"cispo_cap_mode": "relative", "clip_range": 0.6, "clip_range_high": 0.2},
            [0.5, 1.2, 1.0, 1.2],
            2,
        ),
    ],
)
def test_cispo_clips_weights(settings: Any, weights: list[float], clipped: int) -> None:
    loss = PolicyGradient(loss_type="cispo", **settings).loss(*said())
    terms = [-w * a * n for w, a, n in zip(weights, ADVANTAGES, NEW, strict=True)]
    assert loss.item() == pytest.approx(np.mean(terms), rel=1e-5)
    assert float(loss.metrics["clip_fraction"]) == clipped / 4


def test_what_is_at_a_bound_is_not_clipped() -> None:
    batch, outputs = said()
    least = float((outputs.logprobs - batch.old_logprobs).exp()[0])
    loss = PolicyGradient(**RELATIVE, clip_range=1 - least, clip_range_high=9.0).loss(
        batch, outputs
    )
    assert float(loss.metrics["clip_fraction"]) == 0.0


@pytest.mark.parametrize(
    ("loss_type", "move", "ratio"),
    [("sequence", 5.0, 10.0), ("sequence", 11.0, 20.0), ("turn", 2.5, 2.5), ("turn", 5.0, 3.0)],
)
def test_ratios_of_a_whole_are_bounded(loss_type: Any, move: float, ratio: float) -> None:
    """The logarithm of a product by 20, that of a mean by 3."""
    batch, outputs = said()
    batch.advantages = -torch.ones(4)
    outputs.logprobs = batch.old_logprobs + move
    loss = PolicyGradient(loss_type=loss_type).loss(batch, outputs)
    assert loss.item() == pytest.approx(math.exp(ratio), rel=1e-4)


@pytest.mark.parametrize(
    ("loss_type", "lags", "top_p", "weighed"),
    [
        ("reinforce", (0, 0), 0.9, []),  # a sampler that cuts is no other policy
        ("reinforce", (0, 1), 1.0, [2, 3]),
        ("reinforce", (2, 1), 1.0, [0, 1, 2, 3]),
        ("ppo", (0, 0), 1.0, []),
    ],
)
def test_what_older_weights_sampled_is_weighed_unless_told_otherwise(
    loss_type: Any, lags: tuple[int, int], top_p: float, weighed: list[int]
) -> None:
    batch, outputs = said(top_p=top_p)
    for turn, lag in zip(batch.turns, lags, strict=True):
        turn.lag = lag
    algorithm = PolicyGradient(loss_type=loss_type, importance_cap=1.5)
    found = algorithm._importance(batch, outputs.logprobs)
    expected = [min(RATIOS[at], 1.5) if at in weighed else 1.0 for at in range(4)]
    assert (found is None) == (not weighed)
    assert found is None or found.tolist() == pytest.approx(expected)
    none = PolicyGradient(loss_type=loss_type, importance="none")
    assert none._importance(batch, outputs.logprobs) is None
    if loss_type == "reinforce":
        terms = [-w * a * n for w, a, n in zip(expected, ADVANTAGES, NEW, strict=True)]
        assert algorithm.loss(batch, outputs).item() == pytest.approx(np.mean(terms) * 2)


RELATIVE: dict[str, Any] = {"loss_type": "cispo", "cispo_cap_mode": "relative"}
REINFORCE = {"loss_type": "reinforce"}


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "settings", "refused"),
    [
        (PolicyGradient, {"delta": 1.2}, r"must exceed 1 \+ clip_range_high, 1.2"),
        (PolicyGradient, {"delta": 1.2, "clip_range": 0.19}, None),
        (PolicyGradient, {"delta": 1.25, "clip_range_high": 0.3}, "clip_range_high, 1.3"),
        (PolicyGradient, {"delta": 1.25, "clip_range": 0.3, "clip_range_high": 0.2}, None),
        (PolicyGradient, {"delta": 4.0, **REINFORCE}, "clips no ratio"),
        (PolicyGradient, {"delta": 4.0, "loss_type": "cispo"}, "clips no ratio"),
        (PolicyGradient, {"kl_bias_correction": True}, "kl_coef is 0"),
        (PolicyGradient, {"kl_bias_correction": True, "kl_coef": 0.1}, None),
        (PPO, {"kl_bias_correction": True, "kl_coef": 0.1}, "part of the reward"),
        (PPO, {"critic": "central"}, "is not supported by this algorithm"),
        (PPO, {"critic_warmup": 2}, "critic_warmup needs"),
        (PPO, {"critic_warmup": 2, "critic": "separate"}, None),
        (PPO, {"critic_epochs": 2}, "critic_epochs needs"),
        (PPO, {"critic_epochs": 2, "critic": "separate"}, None),
        (MAPPO, {"value_normalization": True}, None),
        (MAPPO, {"value_normalization": False, "critic": "mixed"}, None),
        (
            MAPPO,
            {"value_normalization": True, "critic": "mixed"},
            "^value_normalization: a mixed critic has its own units",
        ),
    ],
)
def test_what_does_not_go_together(kind: Any, settings: Any, refused: str | None) -> None:
    if refused is None:
        assert kind(**settings) == kind(**settings)
        return
    with pytest.raises(ConfigError, match=refused):
        kind(**settings)


class Bare(Algorithm):
    """Gives nothing."""


# -- critics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returns", "residuals", "expected"),
    [
        ([1.0, 3.0, 5.0], [0.5, 1.5, 2.5], 0.75),
        ([1.0, 3.0], [3.0, 9.0], -8.0),
        ([1.0, 3.0], [7.0, 7.0], 1.0),
        ([2.0, 2.0], [1.0, 3.0], 0.0),
        ([], [], None),
    ],
)
def test_how_much_values_explain(
    returns: list[float], residuals: list[float], expected: float | None
) -> None:
    algorithm = ActorCritic()
    algorithm.explain(
        *({"a": np.array(x[:1]), "b": np.array(x[1:])} if x else {} for x in (returns, residuals))
    )
    wanted = {}
    if expected is not None:
        wanted = {
            "explained_variance": expected,
            "value_error": float(np.mean(np.square(residuals))),
            "return_variance": float(np.var(returns, ddof=1)),
        }
    assert algorithm.metrics == pytest.approx(wanted)
    assert not algorithm.waiting


def test_policies_wait_while_nothing_is_explained() -> None:
    returns = {"a": np.array([1.0, 3.0])}
    blind, seeing = (returns, returns), (returns, {"a": np.array([0.0, 1.0])})
    algorithm, waited = PPO(critic="separate", critic_warmup=2), []
    for _ in range(3):
        algorithm.metrics = {}
        algorithm.explain(*blind)
        waited.append((algorithm.waiting, algorithm.metrics["critic_warmup"]))
    fresh = PPO(critic="separate", critic_warmup=2)
    fresh.explain({}, {})  # nothing was played
    assert fresh.waiting and fresh.warmup_left == 1
    assert waited == [(True, 1.0), (True, 1.0), (False, 0.0)] and algorithm.warmup_left == 0
    other = PPO(critic="separate", critic_warmup=2)
    other.explain(*seeing)
    assert not other.waiting and other.warmup_left == 0
    other.metrics = {}
    other.explain(*blind)
    assert not other.waiting


def test_units_are_running_moments_of_each_critics_returns_and_are_saved() -> None:
    algorithm = IPPO()
    assert algorithm.units_of("b") == (0.0, 1.0)
    algorithm.observe_returns({"b": np.array([1.0, 3.0]), "a": np.array([7.0])})
    assert algorithm.metrics == {
        "returns/a/mean": 7.0,
        "returns/a/std": 1.0,  # of one number: none
        "returns/b/mean": 2.0,
        "returns/b/std": pytest.approx(math.sqrt(2)),
    }
    algorithm.observe_returns({"b": np.array([8.0])})
    assert algorithm.units_of("b") == pytest.approx((4.0, math.sqrt(13)))
    algorithm.warmup_left = 3
    state = json.loads(json.dumps(algorithm.state_dict()))
    other = IPPO()
    other.load_state_dict(state)
    assert other.state_dict() == algorithm.state_dict() and other.warmup_left == 3
    assert other.units_of("b") == algorithm.units_of("b")
    plain = PPO()
    plain.observe_returns({"b": np.array([1.0, 3.0])})
    assert plain.metrics == {} and plain.units_of("b") == (0.0, 1.0)


@pytest.mark.parametrize(("level", "expected"), [("turn", 2.0), ("token", (2.0 + 0.5) / 2)])
def test_a_value_loss_is_in_the_units_of_its_critic(level: Any, expected: float) -> None:
    """Of a batch of a single turn, whose return is two deviations above the mean."""
    turn = Turn("a", "b", [1], [2, 3], [-1.0, -1.0])
    turn.returns, turn.values = 4.0 + 2 * math.sqrt(13), 0.0
    algorithm = IPPO(level=level, value_clip_range=None)
    algorithm.observe_returns({"b": np.array([1.0, 3.0, 8.0]), "a": np.array([50.0, 90.0])})
    found = algorithm.value_loss(pack(merge([turn])), torch.tensor([0.0, 1.0]))
    assert found.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("topology", "of_team"),
    [("shared", False), ("separate", False), ("central", True), ("mixed", True)],
)
def test_which_critics_are_the_teams(topology: Topology, of_team: bool) -> None:
    assert CriticPlan(topology).of_team == of_team


def test_siblings_are_counted_where_they_are_compared() -> None:
    turns = [Turn("a", "p", [1], [2], [-1.0], reward=paid) for paid in (1.0, 0.0)]
    rollouts = [Rollout("a", "p", "t", [turn]) for turn in turns]
    group = Group([Episode.recorded(str(i), Task("t"), {"a": r}) for i, r in enumerate(rollouts)])
    found = {"frac_zero_variance": 0.0, "frac_small_groups": 0.0}
    for algorithm, metrics in ((GRPO(), found), (PolicyGradient(), {})):
        algorithm.metrics["old"] = turns[0].returns = 1.0
        algorithm.credit([group])
        assert algorithm.metrics == metrics and turns[0].returns is None


# -- specs and steps -------------------------------------------------------------------------------


def test_when_the_reference_is_renewed() -> None:
    every = [Spec(renew_reference=2).renews_reference(step, None, 4) for step in range(5)]
    assert every == [False, False, True, False, True]
    assert not any(Spec().renews_reference(step, None, 4) for step in range(5))
    rounds = Spec(sampling=SamplingPlan(rounds=Rounds()))
    # ten rows in batches of four: three iterations to a round
    found = [rounds.renews_reference(step, 10, 4) for step in range(7)]
    assert found == [False, False, False, True, False, False, True]


class Steps(Bare, GroupFilter, Refinement, CarryOver):
    """Adds all three steps."""

    def keeps(self, group: Group) -> bool:
        return len(group) > 1

    def refine(self, groups: Any, critics: Any) -> None:
        self.metrics["critics"] = len(critics)

    async def carry(self, stage: Any, waiting: Any, groups: Any) -> dict[str, float]:
        return {"waiting": float(len(waiting))}


def test_steps_are_taken_by_algorithms_that_have_them() -> None:
    plain, own, empty = Bare(), Steps(), Group([])
    critic: Any = object()
    assert keeps(plain, empty) and not keeps(own, empty)
    refine(plain, [], [critic])
    refine(own, [], [critic])
    assert own.metrics == {"critics": 0}  # it does not mix
    learner: Any = object()
    assert run_async(carry(plain, [], [learner], [])) == {}
    assert run_async(carry(own, [], [learner], [])) == {"waiting": 1.0}
    assert run_async(carry(own, [learner], [], [])) == {}
