"""Losses on awkward inputs, each against a computation of its own in plain loops: several turns of
uneven lengths, advantages per token, sequences that break off, agents that are silent, turns whose
advantages are 0 or missing, and batches cut into several micro-batches."""

import math
from itertools import chain, groupby
from typing import Any

import numpy as np
import pytest
import torch

from mrlm.algorithms.grpo import GRPO
from mrlm.algorithms.magrpo import MAGRPO
from mrlm.algorithms.marft import MARFT
from mrlm.algorithms.ppo import PPO
from mrlm.core.episodes import Episode, Group
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Rollout, SamplingParams, Task, Turn
from mrlm.learn.data.batch import Outputs, Totals, pack
from mrlm.learn.data.samples import samples_of
from mrlm.learn.learner import Learner
from mrlm.learn.optimizer import LearnerSettings
from mrlm.learn.policy.policy import Policy
from oracles import AVERAGE, Row, averaged

LENGTHS = [[[3, 1, 4], [2]], [[5], [1, 2]], [[1, 1], []], [[2, 6], [4, 1, 3]]]
"""Tokens of the turns of agents `a` and `b` in each episode; `b` is silent in one."""


def episodes(seed: int = 0, vocabulary: int = 11) -> list[Group]:
    """Groups whose turns hold everything a loss reads. Turn 1 of episode 0 does not continue turn
    0; one turn has no advantages, one has zeros."""
    rng, found = np.random.default_rng(seed), []
    for number, lengths in enumerate(LENGTHS):
        parts = {}
        for agent, sizes in zip("ab", lengths, strict=True):
            turns, prompt = [], [1 + number, 2]
            for index, size in enumerate(sizes):
                if (number, agent, index) == (0, "a", 1):
                    prompt = [9, 9, 9]
                turn = Turn(agent, "p", list(prompt), rng.integers(1, vocabulary, size).tolist())
                turn.index = turn.step = index
                old = rng.normal(-1.5, 0.5, size)
                turn.old_logprobs = old.tolist()
                turn.logprobs = (old + rng.normal(0, 0.4, size)).tolist()
                turn.ref_logprobs = (old + rng.normal(0, 0.4, size)).tolist()
                turn.advantages = rng.normal(0, 1, size)
                turn.values, turn.returns = rng.normal(0, 1, size), rng.normal(0, 1, size)
                turn.sampling = SamplingParams(max_new_tokens=8)
                turn.message = Message("two words" if index else "one")
                turns.append(turn)
                prompt = [*prompt, *turn.completion_ids, 3]
            if turns:
                parts[agent] = Rollout(agent, "p", "t", turns)
        found.append(Group([Episode(str(number), Task("t"), parts, 0.0, status="done")], "t"))
    found[0].episodes[0].rollouts["a"].turns[2].advantages = None
    found[3].episodes[0].rollouts["a"].turns[0].advantages = 0.0
    return found


def sequences(groups: list[Group]) -> list[list[Turn]]:
    """The trained turns of each rollout: together, although turn 1 of one does not continue turn
    0."""
    rollouts = [each for group in groups for each in group.episodes[0].rollouts.values()]
    return [[t for t in rollout.turns if t.advantages is not None] for rollout in rollouts]


def of(turn: Turn, name: str) -> np.ndarray:
    return np.broadcast_to(np.asarray(getattr(turn, name), float), len(turn.completion_ids))


def rows(found: list[list[Turn]], new: dict[int, np.ndarray]) -> list[Row]:
    """A row for each trained token, with means and sums over its turn and its sequence."""
    table: list[Row] = []
    for place, turns in enumerate(found):
        moves = [new[id(turn)] - of(turn, "old_logprobs") for turn in turns]
        weights = [of(turn, "old_logprobs") - of(turn, "logprobs") for turn in turns]
        advantages = np.concatenate([of(turn, "advantages") for turn in turns])
        whole, off = np.concatenate(moves), np.concatenate(weights)
        for turn, move in zip(turns, moves, strict=True):
            own = of(turn, "advantages")
            for t in range(len(move)):
                table.append(
                    {
                        "sequence": place,
                        "turn": id(turn),
                        "agent": turn.agent,
                        "new": new[id(turn)][t],
                        "ref": of(turn, "ref_logprobs")[t],
                        "A": own[t],
                        "A turn": own.mean(),
                        "A sequence": advantages.mean(),
                        "move": move[t],
                        "turn sum": move.sum(),
                        "turn mean": move.mean(),
                        "sequence sum": whole.sum(),
                        "sequence mean": whole.mean(),
                        "off": off[turns_before(turns, turn) + t],
                        "off sum": off.sum(),
                        "off mean": off.mean(),
                        "turn size": len(move),
                        "sequence size": len(whole),
                        "turns": len(turns),
                        "words": len(turn.message.content.split()) if turn.message else 1,
                    }
                )
    return table


def turns_before(turns: list[Turn], turn: Turn) -> int:
    """Tokens of the turns before one."""
    at = next(i for i, each in enumerate(turns) if each is turn)
    return sum(len(each) for each in turns[:at])


def clip(ratio: float, advantage: float, low: float, high: float) -> float:
    held = min(max(ratio, 1 - low), 1 + high)
    return -min(ratio * advantage, held * advantage)


RATIOS = {
    "ppo": ("move", "A"),
    "grpo": ("move", "A"),
    "dr_grpo": ("move", "A"),
    "gspo": ("sequence mean", "A"),
    "sequence": ("sequence sum", "A sequence"),
    "turn": ("turn mean", "A turn"),
}


def per_token(row: Row, loss: str, low: float, high: float) -> tuple[float, bool]:
    """The loss of a token, and whether it was clipped."""
    if loss == "reinforce":
        return -row["A"] * row["new"], False
    if loss == "cispo":
        ratio = math.exp(row["move"])
        return -min(ratio, 1.2) * row["A"] * row["new"], ratio > 1.2
    move, advantage = (row[name] for name in RATIOS[loss])
    ratio = math.exp(min(move, 3.0) if loss == "turn" else move)
    out = (ratio > 1 + high and advantage > 0) or (ratio < 1 - low and advantage < 0)
    return clip(ratio, advantage, low, high), out


def moved(found: list[list[Turn]], seed: int = 1) -> dict[int, np.ndarray]:
    """What the policy says of each turn's tokens now."""
    rng = np.random.default_rng(seed)
    turns = [turn for sequence in found for turn in sequence]
    return {id(t): of(t, "old_logprobs") + rng.normal(0, 0.3, len(t)) for t in turns}


def case() -> tuple[list[Group], list[list[Turn]], dict[int, np.ndarray], list[Row]]:
    """Groups, their sequences, what the policy says of these now, and a row for each."""
    groups = episodes()
    found = sequences(groups)
    new = moved(found)
    return groups, found, new, rows(found, new)


def computed(
    algorithm: Any, groups: list[Group], new: dict[int, np.ndarray], cut: int
) -> dict[str, float]:
    """The library's loss and metrics, over micro-batches of `cut` rollouts."""
    samples, sums = samples_of(groups, "p", algorithm.spec.unit), {}
    totals = Totals.of(samples)
    rollouts = [list(part) for _, part in groupby(samples, key=lambda each: each.rollout)]
    for at in range(0, len(rollouts), cut):
        part = [*chain.from_iterable(rollouts[at : at + cut])]
        batch = pack(part, totals)
        said = torch.tensor(np.concatenate([new[id(turn)] for turn in batch.turns]))
        entropy = -said / 2
        loss = algorithm.loss(batch, Outputs(said, entropy, torch.zeros(len(batch))))
        for name, value in {"loss": loss.total, **loss.metrics}.items():
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


@pytest.mark.parametrize("cut", [1, 3, 99])
@pytest.mark.parametrize("loss", AVERAGE)
def test_every_loss_by_hand(loss: Any, cut: int) -> None:
    groups, found, new, table = case()
    assert [len(turns) for turns in found] == [2, 1, 1, 2, 2, 2, 3]
    algorithm = GRPO(loss_type=loss, clip_range=0.1, clip_range_high=0.15, cispo_cap=1.2)
    parts = [per_token(row, loss, 0.1, 0.15) for row in table]
    sums = computed(algorithm, groups, new, cut)
    expected = averaged(table, [part for part, _ in parts], AVERAGE[loss])
    assert sums["loss"] == pytest.approx(expected, rel=1e-5)
    assert sums["policy_loss"] == pytest.approx(expected, rel=1e-5)
    divergence = np.mean([math.exp(row["move"]) - 1 - row["move"] for row in table])
    assert sums["approx_kl"] == pytest.approx(divergence, rel=1e-5)
    assert sums["entropy"] == pytest.approx(np.mean([-row["new"] / 2 for row in table]), rel=1e-5)
    if loss != "reinforce":
        assert sums["clip_fraction"] == pytest.approx(np.mean([out for _, out in parts]), abs=1e-6)
        assert 0 < sums["clip_fraction"] < 1


@pytest.mark.parametrize(
    "how",
    [
        "token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant",
        "turn_mean", "turn_mean_token_sum", "sequence_mean_turn_mean", "agent_balanced",
    ],
)  # fmt: skip
def test_every_average_by_hand(how: Any) -> None:
    groups, _, new, table = case()
    losses = [per_token(row, "ppo", 0.1, 0.15)[0] for row in table]
    settings: Any = {"aggregation": how, "clip_range": 0.1, "clip_range_high": 0.15}
    assert computed(GRPO(**settings), groups, new, 2)["loss"] == pytest.approx(
        averaged(table, losses, how), rel=1e-5
    )


def test_bounds_and_bonuses_of_the_surrogate_by_hand() -> None:
    groups, _, new, table = case()
    dual = [per_token(row, "ppo", 0.2, 0.2)[0] for row in table]
    dual = [min(x, -1.05 * r["A"]) if r["A"] < 0 else x for x, r in zip(dual, table, strict=True)]
    delta = [
        max(-r["A"] * min(math.exp(r["move"]), 1.3), clip(math.exp(r["move"]), r["A"], 0.2, 0.2))
        if r["A"] < 0
        else clip(math.exp(r["move"]), r["A"], 0.2, 0.2)
        for r in table
    ]
    delta = [
        min(x, max(-r["A"] * 1.3, -r["A"] * 1.2)) if r["A"] < 0 else x
        for x, r in zip(delta, table, strict=True)
    ]
    plain = [per_token(row, "ppo", 0.2, 0.2)[0] for row in table]
    gaps = [row["ref"] - row["new"] for row in table]
    k3 = [math.exp(gap) - 1 - gap for gap in gaps]
    weighted = [k * math.exp(row["move"]) for k, row in zip(k3, table, strict=True)]
    entropy = [-row["new"] / 2 for row in table]

    def mean(values: list[float]) -> float:
        return averaged(table, values, "token_mean")

    cases: list[tuple[dict[str, Any], float]] = [
        ({"dual_clip": 1.05}, mean(dual)),
        ({"delta": 1.3}, mean(delta)),
        ({"kl_coef": 0.3}, mean(plain) + 0.3 * mean(k3)),
        ({"kl_coef": 0.3, "kl_bias_correction": True}, mean(plain) + 0.3 * mean(weighted)),
        ({"entropy_coef": 0.2}, mean(plain) - 0.2 * mean(entropy)),
    ]
    for settings, expected in cases:
        sums = computed(GRPO(**settings), groups, new, 2)
        assert sums["loss"] == pytest.approx(expected, rel=1e-5), settings
        if "kl_coef" in settings:
            assert sums["kl"] == pytest.approx(mean(k3), rel=1e-5)


@pytest.mark.parametrize("kind", ["token", "icepop", "sequence", "sequence_mask", "geometric_mask"])
def test_weights_for_another_sampler_by_hand(kind: Any) -> None:
    groups, _, new, table = case()

    def weight(row: Row) -> float:
        name = {"token": "off", "icepop": "off", "geometric_mask": "off mean"}.get(kind, "off sum")
        w = math.exp(row[name])
        if kind in ("token", "sequence"):
            return min(w, 1.1)
        low = 0.0 if kind == "sequence_mask" else 0.9
        return w if low <= w <= 1.1 else 0.0

    weights = [weight(row) for row in table]
    assert len(set(weights)) > 3
    losses = [per_token(row, "ppo", 0.2, 0.2)[0] * w for row, w in zip(table, weights, strict=True)]
    algorithm = GRPO(importance=kind, importance_cap=1.1, importance_floor=0.9)
    sums = computed(algorithm, groups, new, 2)
    assert sums["loss"] == pytest.approx(averaged(table, losses, "token_mean"), rel=1e-5)


@pytest.mark.parametrize("normalization", ["sum", "token", "word"])
def test_marft_s_turn_ratio_by_hand(normalization: Any) -> None:
    groups, _, new, table = case()
    size = {"sum": lambda row: 1, "token": lambda row: row["turn size"]}.get(
        normalization, lambda row: row["words"]
    )
    losses = [clip(math.exp(row["turn sum"] / size(row)), row["A"], 0.2, 0.2) for row in table]
    sums = computed(MARFT(normalization=normalization), groups, new, 2)
    assert sums["loss"] == pytest.approx(averaged(table, losses, "turn_mean"), rel=1e-5)


@pytest.mark.parametrize("level", ["turn", "token"])
def test_value_losses_by_hand(level: Any) -> None:
    groups = episodes()
    found = sequences(groups)
    new = moved(found)
    errors = []
    for turn in (turn for turns in found for turn in turns):
        for t in range(1 if level == "turn" else len(turn)):
            old, target = of(turn, "values")[t], of(turn, "returns")[t]
            held = old + min(max(0.0 - old, -0.2), 0.2)
            errors.append(max(target**2, (held - target) ** 2) / 2)
    sums = computed(PPO(level=level), groups, new, 3)
    assert sums["value_loss"] == pytest.approx(np.mean(errors), rel=1e-5)
    assert sums["loss"] == pytest.approx(sums["policy_loss"] + 0.1 * np.mean(errors), rel=1e-5)


# -- what feeds the losses -------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["turn", "token"])
@pytest.mark.parametrize(
    ("status", "reason", "goes_on"),
    [("done", "stop", False), ("done", "length", True), ("truncated", "stop", True)],
)
def test_a_turn_that_was_cut_goes_on_with_its_value(
    level: Any, status: Any, reason: Any, goes_on: bool
) -> None:
    turn = Turn("a", "p", [1], [2, 3], [-1.0, -1.0], finish_reason=reason)
    turn.values, turn.reward = [0.4, 0.7], 1.0
    rollout = Rollout("a", "p", "t", [turn])
    group = Group([Episode("e", Task("t"), {"a": rollout}, 1.0, [1.0], status)], "t")
    settings: Any = {"level": level, "gae_lambda": 1.0, "gamma": 0.5, "whiten_advantages": False}
    PPO(**settings, bootstrap_on_truncation=True).credit([group])
    # the discount of what comes after the last turn, times the last value that was read
    after = (0.4 if level == "turn" else 0.7) if goes_on else 0.0
    assert of(turn, "returns")[-1] == pytest.approx(1.0 + 0.5 * after)
    PPO(**settings).credit([group])
    assert of(turn, "returns")[-1] == pytest.approx(1.0)


def test_own_returns_are_discounted_by_the_steps_between_own_turns() -> None:
    turns = [Turn("a", "p", [1], [2], [0.0], step=step, index=i) for i, step in enumerate((0, 3))]
    turns[0].reward, turns[1].reward = 1.0, 8.0
    rollout = Rollout("a", "p", "t", turns)
    group = Group([Episode("e", Task("t"), {"a": rollout}, 9.0, [1.0, 0, 0, 8.0], "done")], "t")
    MAGRPO(baseline="none", returns="independent", gamma=0.5).credit([group])
    assert [turn.returns for turn in turns] == [1.0 + 0.5**3 * 8.0, 8.0]


# -- what a learner makes of them ------------------------------------------------------------------

FAST = LearnerSettings(learning_rate=5e-3, max_tokens=40)


def taught(policy: Policy, groups: list[Group]) -> None:
    """Old log-probs as the policy says them, so that the first step is on-policy."""
    batch = pack(samples_of(groups, policy.name))
    with torch.no_grad():
        said = policy.forward(batch).logprobs
    end = 0
    for turn in batch.turns:
        start, end = end, end + len(turn)
        turn.old_logprobs = turn.logprobs = said[start:end].tolist()


def test_a_learner_counts_what_it_leaves_out(model: Any, tokenizer: Any) -> None:
    """Samples whose advantages are all 0 do not go through the model, and are in the denominators;
    metrics are means over the tokens that do."""
    groups = episodes(vocabulary=60)
    for turn in groups[1].episodes[0].turns:
        turn.advantages = 0.0
    policy = Policy("p", model, tokenizer)
    taught(policy, groups)
    found = sequences(groups)
    table = rows(found, {id(t): of(t, "old_logprobs") for turns in found for t in turns})
    learner = Learner(policy, None, GRPO(), settings=FAST)
    metrics = run_async(learner.update(samples_of(groups, "p"), learner.algorithm, 0, 0))
    expected = averaged(table, [-row["A"] for row in table], "token_mean")
    assert metrics["loss"] == pytest.approx(expected, rel=1e-4)
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)


def test_positions_count_from_the_beginning_of_each_sample(gpt2_path: str) -> None:
    """With absolute positions: ragged samples of several turns side by side say what each says by
    itself in the model's own forward."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gpt2_path).eval()
    policy = Policy("p", model, AutoTokenizer.from_pretrained(gpt2_path))
    samples = samples_of(episodes(vocabulary=60), "p")
    batch = pack(samples)
    with torch.no_grad():
        together = policy.forward(batch).logprobs
        end = 0
        for sample in samples:
            logits = model(torch.tensor([sample.ids])).logits[0].log_softmax(-1)
            for turn, at in zip(sample.turns, sample.starts, strict=True):
                start, end = end, end + len(turn)
                alone = logits[range(at - 1, at - 1 + len(turn)), turn.completion_ids]
                torch.testing.assert_close(together[start:end], alone, atol=1e-4, rtol=1e-4)
