"""What mixers compute, against plain formulas; what they can and cannot tell apart."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from critics import columns, valued
from mrlm.algorithms.qmix import QMIX
from mrlm.algorithms.vdn import VDN
from mrlm.core.errors import ConfigError
from mrlm.core.types import Turn
from mrlm.learn.credit.joint_steps import JointStep, as_one, in_rounds
from mrlm.learn.critics.mixers import (
    Mixing,
    QMIXMixer,
    TeamValue,
    VDNMixer,
    best_of,
    counterfactuals,
)


def mixer(seed: int, agents: int, layers: int, state: int = 5, embed: int = 6) -> QMIXMixer:
    """One with random weights, larger than those it would begin with."""
    torch.manual_seed(seed)
    found = QMIXMixer(agents, state, embed, layers, hidden=7).double()
    with torch.no_grad():
        for weight in found.parameters():
            weight.normal_()
    return found


def oracle() -> tuple[QMIXMixer, torch.Tensor, torch.Tensor]:
    """The example with numbers: n=2, embed 2, s=(2), hypernetworks without bias."""
    found = QMIXMixer(2, 1, embed=2, layers=1).double()
    numbers = {
        "rows.weight": [[1.0], [-2.0], [0.5], [1.0]],
        "rows.bias": [0.0] * 4,
        "final.weight": [[-1.0], [0.5]],
        "final.bias": [0.0] * 2,
        "bias.weight": [[0.1], [-0.2]],
        "bias.bias": [0.0] * 2,
        "offset.0.weight": [[1.0], [-1.0]],
        "offset.0.bias": [0.0] * 2,
        "offset.2.weight": [[0.3, 0.7]],
        "offset.2.bias": [0.05],
    }
    found.load_state_dict({name: torch.tensor(x).double() for name, x in numbers.items()})
    return found, torch.tensor([[2.0]]).double(), torch.ones(1, 2, dtype=torch.bool)


def plain_qmix(mix: QMIXMixer, q: Any, active: Any, state: Any) -> float:
    """QMIX of one row as its paper writes it, in loops."""
    weights = {name: value.detach().numpy() for name, value in mix.named_parameters()}

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]

    def hypernet(name: str) -> np.ndarray:
        if f"{name}.weight" in weights:
            return linear(name, state)
        return linear(f"{name}.2", np.maximum(linear(f"{name}.0", state), 0))

    rows, final, bias = np.abs(hypernet("rows")), np.abs(hypernet("final")), linear("bias", state)
    total = linear("offset.2", np.maximum(linear("offset.0", state), 0))[0]
    for unit in range(mix.embed):
        x = bias[unit]
        for agent in range(mix.num_agents):
            x += q[agent] * rows[agent * mix.embed + unit] if active[agent] else 0.0
        total += final[unit] * (x if x > 0 else math.exp(x) - 1)
    return float(total)


# -- mixers ----------------------------------------------------------------------------------------


def test_the_example_of_qmix_and_its_slopes() -> None:
    mix, state, active = oracle()
    q = torch.tensor([[0.6, -0.8]]).double().requires_grad_()
    total = mix(q, active, state)
    assert total.item() == pytest.approx(2.25, abs=1e-5)
    assert torch.autograd.grad(total.sum(), q)[0][0].tolist() == pytest.approx([8, 4], abs=1e-5)


def test_the_examples_of_counterfactuals() -> None:
    mix, state, active = oracle()
    u, v = torch.tensor([[0.6, -0.8]]).double(), torch.tensor([[0.4, -1.0]]).double()
    found = counterfactuals(mix, u, v, active, state)
    assert found[0].tolist() == pytest.approx([1.529680, 0.8], abs=1e-5)
    assert VDNMixer()(u, active).item() == pytest.approx(-0.2, abs=1e-5)
    assert counterfactuals(VDNMixer(), u, v, active)[0].tolist() == pytest.approx(
        [0.2, 0.2], abs=1e-5
    )


@pytest.mark.parametrize("layers", [1, 2])
def test_qmix_is_what_its_paper_writes(layers: int) -> None:
    rng = np.random.default_rng(0)
    for seed in range(25):
        agents = 1 + seed % 4
        mix = mixer(seed, agents, layers)
        q, state = rng.normal(size=(3, agents)), rng.normal(size=(3, 5))
        active = rng.random((3, agents)) < 0.7
        given = [torch.from_numpy(x) for x in (q, active, state)]
        expected = [plain_qmix(mix, *row) for row in zip(q, active, state, strict=True)]
        assert mix(*given).tolist() == pytest.approx(expected, abs=1e-9)
        summed = [row[a].sum() for row, a in zip(q, active, strict=True)]
        assert VDNMixer()(*given).tolist() == pytest.approx(summed, abs=1e-12)


def test_the_team_never_gets_worse_when_an_agent_gets_better() -> None:
    """400 random hypernetworks: no slope is negative, and those of agents that take part are not
    all zero."""
    generator, slopes = torch.Generator().manual_seed(0), []
    for seed in range(400):
        agents = 1 + seed % 5
        mix = mixer(seed, agents, 1 + seed % 2)
        q = torch.randn(4, agents, generator=generator).double().requires_grad_()
        state = torch.randn(4, 5, generator=generator).double()
        total = mix(q, torch.ones(4, agents, dtype=torch.bool), state)
        slopes.append(torch.autograd.grad(total.sum(), q)[0].flatten())
    together = torch.cat(slopes)
    assert together.min() >= 0 and (together > 0).double().mean() > 0.99


@pytest.mark.parametrize("layers", [1, 2])
def test_who_takes_no_part_is_not_there(layers: int) -> None:
    """With a masked second agent, QMIX is a function of the first alone, and neither the second's
    value nor its weights get any gradient."""
    mix = mixer(3, 2, layers)
    active = torch.tensor([[True, False]]).expand(4, 2)
    state = torch.randn(4, 5, generator=torch.Generator().manual_seed(1)).double()
    q = torch.tensor([[0.3, math.inf], [0.3, -5.0], [-1.0, 7.0], [-1.0, math.nan]]).double()
    q.requires_grad_()
    total = mix(q, active, state[:1].expand(4, 5))
    torch.testing.assert_close(total[0::2], total[1::2])
    assert abs(total[0] - total[2]) > 1
    total.sum().backward()
    assert q.grad is not None and (q.grad[:, 1] == 0).all() and (q.grad[:, 0] > 0).all()
    last = mix.rows if layers == 1 else mix.rows.get_submodule("2")
    of_second = last.weight.grad.view(2, mix.embed, -1)[1]
    assert (of_second == 0).all() and (last.weight.grad != 0).any()
    with torch.no_grad():
        for weight in (last.weight, last.bias):
            weight.view(2, mix.embed, -1)[1] = 100.0
    torch.testing.assert_close(mix(q, active, state[:1].expand(4, 5)), total)


def test_who_takes_no_part_earns_nothing() -> None:
    mix, state, _ = oracle()
    active = torch.tensor([[True, False]])
    found = counterfactuals(
        mix, torch.ones(1, 2).double(), torch.zeros(1, 2).double(), active, state
    )
    assert found[0, 1] == 0 and found[0, 0] > 0


def test_a_small_counterfactual_is_the_slope_times_the_difference() -> None:
    for seed in range(20):
        mix = mixer(seed, 3, 2)
        generator = torch.Generator().manual_seed(seed)
        u = torch.randn(2, 3, generator=generator).double().requires_grad_()
        step = 1e-6 * torch.randn(2, 3, generator=generator).double()
        state = torch.randn(2, 5, generator=generator).double()
        active = torch.ones(2, 3, dtype=torch.bool)
        slope = torch.autograd.grad(mix(u, active, state).sum(), u)[0]
        found = counterfactuals(mix, u.detach(), u.detach() - step, active, state)
        torch.testing.assert_close(found, slope * step, atol=1e-9, rtol=1e-4)


def test_the_best_of_each_is_the_best_of_the_grid() -> None:
    """K answers of each of N agents: the largest Q_tot of all K^N joint answers is that of the
    answers that are best by themselves."""
    for seed in range(50):
        mix, agents, answers = mixer(seed, 3, 1 + seed % 2), 3, 4
        generator = torch.Generator().manual_seed(seed)
        u = torch.randn(answers, agents, generator=generator).double()
        state = torch.randn(1, 5, generator=generator).double()
        grid = torch.tensor(
            [[u[k, i] for i, k in enumerate(ks)] for ks in itertools.product(range(4), repeat=3)]
        ).double()
        active = torch.ones(len(grid), agents, dtype=torch.bool)
        every = mix(grid, active, state.expand(len(grid), -1))
        decision = torch.arange(agents).expand(answers, agents)
        best = best_of(u, decision)
        assert torch.equal(best, u.amax(0).expand(answers, agents))
        assert mix(best[:1], active[:1], state).item() == pytest.approx(every.max().item())


def test_a_hypernetwork_has_one_layer_or_two() -> None:
    with pytest.raises(ValueError, match="1 or 2"):
        QMIXMixer(2, 4, layers=3)
    with pytest.raises(ValueError, match="state"):
        QMIXMixer(2, 4)(torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool))


# -- what can be learned from the team's reward alone ----------------------------------------------

GAMES = {"sum": [[0.0, 1.0], [2.0, 3.0]], "xor": [[0.0, 1.0], [1.0, 0.0]]}


@pytest.mark.parametrize("kind", ["vdn", "qmix"])
@pytest.mark.parametrize("game", GAMES)
def test_a_sum_is_told_apart_and_xor_is_not(kind: Any, game: str) -> None:
    """Two agents, two actions each, all four joint actions: a game that is a sum is fitted exactly;
    xor is neither a sum nor monotone, and the best that both can say is one half everywhere."""
    torch.manual_seed(0)
    team = TeamValue(2, 4, Mixing(kind, "factored", head_size=16, state_size=4))
    joint = list(itertools.product(range(2), repeat=2))
    read = torch.eye(4)[torch.tensor([[a, 2 + b] for a, b in joint])]  # (4, 2, 4)
    paid = torch.tensor([GAMES[game][a][b] for a, b in joint])
    active, state = torch.ones(4, 2, dtype=torch.bool), torch.ones(4, 4)
    optimizer = torch.optim.Adam(team.parameters(), 1e-2)
    for _ in range(400):
        optimizer.zero_grad()
        total = team.mix(team.utilities(read), active, state)
        (total - paid).square().mean().backward()
        optimizer.step()
    total = team.mix(team.utilities(read), active, state)
    error = (total - paid).square().mean().item()
    assert error < 1e-3 if game == "sum" else error > 0.1, error
    if (kind, game) == ("vdn", "xor"):
        assert error == pytest.approx(0.25, abs=1e-3)


# -- joint steps and rounds ------------------------------------------------------------------------


def steps(*speakers: str) -> list[JointStep]:
    return [
        JointStep([Turn(agent, "p", [1], [2], step=i) for agent in agents], reward=10.0**i)
        for i, agents in enumerate(speakers)
    ]


@pytest.mark.parametrize(
    ("speakers", "rounds"),
    [
        (["ab", "ab"], [["ab"], ["ab"]]),
        (["a", "b", "a", "b"], [["a", "b"], ["a", "b"]]),
        (["a", "b", "c", "b"], [["a", "b", "c"], ["b"]]),
        (["a", "a"], [["a"], ["a"]]),
        (["ab", "c", "a"], [["ab", "c"], ["a"]]),
        ([], []),
    ],
)
def test_a_round_ends_before_somebody_speaks_again(
    speakers: list[str], rounds: list[list[str]]
) -> None:
    found = in_rounds(steps(*speakers))
    assert [["".join(t.agent for t in step.turns) for step in part] for part in found] == rounds


def test_the_reward_of_a_round_is_discounted_inside_it() -> None:
    first, second = steps("a", "b")
    first.discount, second.discount = 0.5, 0.25
    whole = as_one([first, second])
    assert (whole.reward, whole.discount) == (1.0 + 0.5 * 10.0, 0.125)
    assert [turn.agent for turn in whole.turns] == ["a", "b"]
    assert first.turns is not whole.turns and len(first.turns) == 1


def test_settings_reach_the_network_that_mixes() -> None:
    own: dict[str, Any] = {"mode": "vdac", "target_rate": 0.5, "critic_epochs": 4}
    shared: dict[str, Any] = {"target_rate": 0.5, "epochs": 4}
    assert VDN(**own).mixing == Mixing("vdn", "vdac", **shared)
    sizes = {"mixing_size": 3, "hypernet_layers": 1, "hypernet_size": 5, "state_size": 7}
    found = QMIX(**own, **sizes)
    assert found.spec.critic.mixing == found.mixing
    assert found.mixing == Mixing(
        "qmix", "vdac", **shared, embed=3, layers=1, hidden=5, state_size=7
    )
    assert VDN(critic_epochs=None, update_epochs=6).mixing.epochs == 6


# -- credit ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [VDN, QMIX])
def test_lambda_returns_and_the_advantages_of_a_mixed_baseline(kind: Any) -> None:
    group = valued([0.5, 0.4, 0.2], [0.0, 0.0, 1.0])
    kind(mode="vdac", gamma=0.9, gae_lambda=0.8, whiten_advantages=False).credit([group])
    for agent in "ab":
        assert columns(group, "returns")[agent] == pytest.approx([0.61632, 0.756, 1.0], abs=1e-5)
        assert columns(group, "advantages")[agent] == pytest.approx([0.11632, 0.356, 0.8], abs=1e-5)


def test_agents_that_take_turns_share_the_return_of_their_round() -> None:
    group = valued([0.5, 0.4], [0.0, 0.0])
    for at, rollout in enumerate(group.episodes[0].rollouts.values()):
        for turn in rollout.turns:
            turn.step = 2 * turn.step + at
            turn.values = [0.5, 0.4][turn.index]
    group.episodes[0].step_rewards = [0.0, 0.0, 0.0, 1.0]
    VDN(gamma=0.9, gae_lambda=0.8).credit([group])
    expected = [0.9**2 * (0.2 * 0.4 + 0.8 * 0.9), 0.9]
    for agent in "ab":
        assert columns(group, "returns")[agent] == pytest.approx(expected)


class Spoken:
    """Stands where a critic does, and says what it is told."""

    def __init__(self, values: list[float], group: Any) -> None:
        turns = list(group.episodes[0].turns)
        self.entries = [(t.agent, [t], v) for t, v in zip(turns, values, strict=True)]
        self.fit = (np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 2.0]))

    def counterfactuals(self) -> list[Any]:
        return self.entries

    def utilities(self) -> list[Any]:
        return [(*entry, "ab".index(entry[0])) for entry in self.entries]


@pytest.mark.parametrize("whiten", ["none", "team", "agent"])
def test_counterfactuals_are_whitened_and_frozen_agents_have_none(whiten: Any) -> None:
    group = valued([0.5, 0.4, 0.2], [0.0, 0.0, 1.0])
    algorithm = VDN(whiten_advantages=False) if whiten == "none" else VDN(whiten_by=whiten)
    group.episodes[0].rollouts["b"].turns[1].trained = False
    algorithm.credit([group])
    algorithm.refine([group], [Spoken([1.0, 2.0, 6.0, 0.1, 50.0, 0.3], group)])
    found = columns(group, "advantages")
    expected = [np.array([1.0, 2.0, 6.0]), np.array([0.1, 0.3])]
    if whiten == "agent":
        expected = [(x - x.mean()) / np.sqrt(x.var(ddof=1) + 1e-8) for x in expected]
    elif whiten == "team":
        expected = [x - x.mean() for x in expected]
        scale = np.sqrt(np.concatenate(expected).var(ddof=1) + 1e-8)
        expected = [x / scale for x in expected]
    assert found["a"] == pytest.approx(list(expected[0]))
    assert [found["b"][0], found["b"][2]] == pytest.approx(list(expected[1]))
    assert found["b"][1] is None
    assert algorithm.metrics["explained_variance"] == pytest.approx(1 - (1 / 3) / 1.0)


def test_a_team_of_one_and_scales_that_nothing_reads_are_refused() -> None:
    for kind in (VDN, QMIX):
        with pytest.raises(ConfigError, match="one agent"):
            kind().check_agents({"a": "p"}, 1)
        kind().check_agents({"a": "p"}, 2)  # the other's policy is frozen
        settings: dict[str, Any]
        for settings in ({"mode": "vdac"}, {"whiten_advantages": False}):
            with pytest.raises(ConfigError, match="whiten_by"):
                kind(whiten_by="agent", **settings)


@pytest.mark.parametrize(
    ("improve", "expected"), [("sft", [None, None, 1.0]), ("dpo", [-1.0, None, 1.0])]
)
def test_the_best_answer_is_learned_and_rejected_is_the_worst(
    improve: Any, expected: list[float | None]
) -> None:
    group = valued([0.5, 0.4, 0.2], [0.0, 0.0, 1.0])
    algorithm = VDN(mode="bon", group_size=3, improve=improve)
    algorithm.credit([group])
    turns = group.episodes[0].rollouts["a"].turns
    for number, turn in enumerate(turns):
        turn.completion_ids = [number, 1]
    algorithm.refine([group], [Spoken([1.0, 2.0, 6.0, 0.5, 0.5, 0.5], group)])
    assert columns(group, "advantages")["a"] == expected
    assert columns(group, "advantages")["b"] == [None] * 3  # all worth the same
    assert algorithm.metrics["frac_compared"] == 0.5
    assert (algorithm.spec.unit, "ref_logprobs" in algorithm.spec.columns) == (
        ("pair", True) if improve == "dpo" else ("turn", False)
    )


@pytest.mark.parametrize(
    ("lost", "expected"),
    [("untrained", [None, -1.0, 1.0]), ("left out", [-1.0, 1.0, None]), ("the same", [None] * 3)],
)
def test_answers_are_compared_that_are_trained_and_differ(lost: str, expected: Any) -> None:
    """The first answer is the worst and the last the best, unless they take no part."""
    group = valued([0.5, 0.4, 0.2], [0.0, 0.0, 1.0])
    algorithm = VDN(mode="bon", group_size=3, improve="dpo")
    algorithm.credit([group])
    turns = group.episodes[0].rollouts["a"].turns
    for number, turn in enumerate(turns):
        turn.completion_ids = [number % 2 if lost == "the same" else number, 1]
    if lost == "untrained":
        turns[0].trained, turns[0].advantages = False, None
    if lost == "left out":
        turns[2].advantages = None
    algorithm.refine([group], [Spoken([1.0, 2.0, 6.0, 0.5, 0.5, 0.5], group)])
    assert columns(group, "advantages")["a"] == expected
    assert algorithm.metrics["frac_compared"] == (0.0 if lost == "the same" else 0.5)


def test_where_nothing_was_answered_nothing_is_compared() -> None:
    group = valued([], [])
    algorithm = VDN(mode="bon")
    algorithm.credit([group])
    algorithm.refine([group], [Spoken([], group)])
    assert algorithm.metrics["frac_compared"] == 0.0
