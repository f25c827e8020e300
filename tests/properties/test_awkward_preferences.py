"""Losses of preferences, scorers and given words on awkward inputs, each against a computation of
its own in plain loops: conversations of several turns and uneven lengths, turns among them that are
not trained, sides that break off, agents that are silent, and batches cut into several
micro-batches."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mrlm.algorithms.dpo import DPO
from mrlm.algorithms.madpo import MADPO
from mrlm.algorithms.malt import MALT
from mrlm.algorithms.reward_model import BradleyTerry
from mrlm.algorithms.sft import SFT
from mrlm.core.episodes import Episode, Group
from mrlm.core.sync_async import run_async
from mrlm.core.types import Rollout, SamplingParams, Task, Turn
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.data.batch import Outputs, Sample, Totals, pack
from mrlm.learn.learner import Learner
from mrlm.learn.optimizer import LearnerSettings
from mrlm.learn.policy.policy import Policy
from oracles import AVERAGE, averaged

Sizes = dict[str, list[int]]
SIDES: list[tuple[Sizes, Sizes]] = [
    ({"a": [3, 1, 4], "b": [5]}, {"a": [2], "b": [1, 2]}),
    ({"a": [1, 1], "b": [2]}, {"a": [6, 2, 1], "b": []}),
    ({"a": [2], "b": [4, 1, 3]}, {"a": [2], "b": [2, 6]}),
]
"""Tokens of the turns of every agent on the two sides of each group; `b` is silent on one."""
REWARDS = [(1.0, 0.0), (0.2, 0.7), (0.5, 0.5)]
"""The second is preferred once; where both earned the same, the first is."""
BROKEN, CONTEXT = (0, 0, "a", 1), (0, 0, "a", 2)
"""(group, side, agent, turn) of a turn that does not continue the one before it, and of one that
is not trained."""


def exact(numbers: np.ndarray) -> list[float]:
    """Numbers that are the same in float32."""
    return numbers.astype(np.float32).astype(float).tolist()


def conversation(
    place: tuple[int, int, str], sizes: Sequence[int], rng: np.random.Generator, vocabulary: int
) -> Rollout:
    """An agent's turns; between two of them it reads two tokens, and one after the last."""
    group, _, agent = place
    turns, prompt = [], [1 + group, 2]
    for index, size in enumerate(sizes):
        if (*place, index) == BROKEN:
            prompt = [9, 9, 9]
        turn = Turn(agent, "p", list(prompt), rng.integers(1, vocabulary, size).tolist())
        turn.index = turn.step = index
        turn.ref_logprobs = exact(rng.normal(-1.5, 0.5, size))
        turn.sampling = SamplingParams(max_new_tokens=8)
        turn.trained = (*place, index) != CONTEXT
        turns.append(turn)
        prompt = [*prompt, *turn.completion_ids, *rng.integers(1, vocabulary, 2).tolist()]
    return Rollout(agent, "p", "t", turns, tail_ids=[3] if turns else [])


def groups(vocabulary: int = 60) -> list[Group]:
    rng, found = np.random.default_rng(0), []
    for number, (sides, rewards) in enumerate(zip(SIDES, REWARDS, strict=True)):
        episodes = []
        for side, (sizes, reward) in enumerate(zip(sides, rewards, strict=True)):
            parts = {
                agent: conversation((number, side, agent), own, rng, vocabulary)
                for agent, own in sizes.items()
            }
            for rollout in parts.values():
                for turn in rollout.turns[-1:]:
                    turn.reward = reward
            episodes.append(Episode(f"{number}/{side}", Task("t"), parts, reward, [], "done"))
            episodes[-1].path = (side,)
        found.append(Group(episodes, "t"))
    return found


def spoken(rollout: Rollout) -> list[Turn]:
    return [turn for turn in rollout.turns if turn.trained and turn.completion_ids]


def compared(found: list[Group]) -> list[tuple[list[Turn], list[Turn]]]:
    """Chosen and rejected turns of every pair."""
    pairs = []
    for group, (first, second) in zip(found, REWARDS, strict=True):
        order = group.episodes if first >= second else group.episodes[::-1]
        for agent in "ab":
            chosen, rejected = (spoken(episode.rollouts[agent]) for episode in order)
            if chosen and rejected:
                pairs.append((chosen, rejected))
    return pairs


Said = Callable[[Turn], np.ndarray]


def says(seed: int = 1) -> Said:
    """What a policy says of the tokens of a turn, whatever copy of the turn it is asked about."""
    rng, known = np.random.default_rng(seed), dict[Any, np.ndarray]()

    def said(turn: Turn) -> np.ndarray:
        key = (turn.agent, tuple(turn.prompt_ids), tuple(turn.completion_ids))
        if key not in known:
            known[key] = rng.normal(-1.5, 0.5, len(turn))
        return known[key]

    return said


def micro_batches(samples: Sequence[Sample], cut: int) -> list[list[Sample]]:
    """Samples in parts of `cut` units."""
    units = list(dict.fromkeys(sample.unit for sample in samples))
    parts = [set(units[at : at + cut]) for at in range(0, len(units), cut)]
    return [[sample for sample in samples if sample.unit in part] for part in parts]


def computed(
    algorithm: Algorithm, found: list[Group], said: Said, cut: int, values: Said | None = None
) -> dict[str, float]:
    """The library's loss and metrics, over micro-batches of `cut` units."""
    algorithm.credit(found)
    samples = algorithm.samples(found, "p")
    assert algorithm.samples(found, "q") == []
    sums, totals = dict[str, float](), Totals.of(samples)
    for part in micro_batches(samples, cut):
        batch = pack(part, totals)
        new = torch.tensor(np.concatenate([said(turn) for turn in batch.turns]))
        scores = values and torch.tensor(np.concatenate([values(turn) for turn in batch.turns]))
        loss = algorithm.loss(batch, Outputs(new, -new / 2, scores))
        for name, value in {"loss": loss.total, **loss.metrics}.items():
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


# -- preferences -----------------------------------------------------------------------------------


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def of_margin(d: float, loss: str, beta: float, e: float) -> float:
    right, wrong = -log_sigmoid(beta * d), -log_sigmoid(-beta * d)
    return {
        "sigmoid": (1 - e) * right + e * wrong,
        "robust": ((1 - e) * right - e * wrong) / (1 - 2 * e),
        "hinge": max(0.0, 1 - beta * d),
        "ipo": (d - 1 / (2 * beta)) ** 2,
    }[loss]


def gain(turns: list[Turn], said: Said) -> float:
    return sum(float((said(t) - np.asarray(t.ref_logprobs)).sum()) for t in turns)


def size(turns: list[Turn]) -> int:
    return sum(map(len, turns))


@pytest.mark.parametrize("cut", [1, 2, 99])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"label_smoothing": 0.1},
        {"loss_type": "robust", "label_smoothing": 0.2},
        {"loss_type": "hinge", "beta": 0.7},
        {"loss_type": "ipo"},
        {"loss_type": "ipo", "normalize_lengths": False},
        {"rpo_alpha": 0.3},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "plain",
)
def test_preferences_by_hand(settings: dict[str, Any], cut: int) -> None:
    found, said = groups(), says()
    loss, beta = settings.get("loss_type", "sigmoid"), settings.get("beta", 0.25)
    e, alpha = settings.get("label_smoothing", 0.0), settings.get("rpo_alpha", 0.0)
    by_length = loss == "ipo" and settings.get("normalize_lengths", True)
    pairs, losses, gains = compared(found), [], []
    assert [(size(c), size(r)) for c, r in pairs] == [(4, 2), (5, 3), (9, 2), (2, 2), (8, 8)]
    for chosen, rejected in pairs:
        good, bad = gain(chosen, said), gain(rejected, said)
        margin = good / size(chosen) - bad / size(rejected) if by_length else good - bad
        likely = sum(float(said(turn).sum()) for turn in chosen) / size(chosen)
        losses.append(of_margin(margin, loss, beta, e) - alpha * likely)
        gains.append((good, bad))
    algorithm = DPO(**{"beta": beta, **settings})
    sums = computed(algorithm, found, said, cut)
    assert algorithm.metrics == {"frac_dropped_pairs": pytest.approx(1 / 6)}
    tokens = np.concatenate([said(turn) for pair in pairs for side in pair for turn in side])
    expected = {
        "loss": np.mean(losses),
        "rewards/chosen": beta * np.mean([good for good, _ in gains]),
        "rewards/rejected": beta * np.mean([bad for _, bad in gains]),
        "rewards/margins": beta * np.mean([good - bad for good, bad in gains]),
        "rewards/accuracies": np.mean([good > bad for good, bad in gains]),
        "entropy": -tokens.mean() / 2,
    }
    assert sums == pytest.approx(expected, rel=1e-9)
    assert 0 < sums["rewards/accuracies"] < 1


@pytest.mark.parametrize("cut", [1, 99])
def test_preferences_of_a_team_are_those_of_its_agents(cut: int) -> None:
    """Rows hold them, whose words nobody sampled."""
    found, said = groups(), says()
    pairs = compared(found)
    margins = [gain(chosen, said) - gain(rejected, said) for chosen, rejected in pairs]
    expected = np.mean([of_margin(margin, "sigmoid", 0.1, 0.0) for margin in margins])
    assert computed(MADPO(), found, said, cut)["loss"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("cut", [1, 3, 99])
def test_a_mean_over_pairs_and_a_mean_over_good_tokens_by_hand(cut: int) -> None:
    """First turns are compared; what earned more than a half is imitated, whatever its length."""
    found, said = groups(), says()
    firsts = [[spoken(e.rollouts[agent])[:1] for e in group] for group in found for agent in "ab"]
    paid = [rewards for rewards in REWARDS for _ in "ab"]
    pairs, good = [], []
    for sides, rewards in zip(firsts, paid, strict=True):
        good += [(t, r) for turns, r in zip(sides, rewards, strict=True) for t in turns if r > 0.5]
        if all(sides) and rewards[0] != rewards[1]:
            pairs.append(sides if rewards[0] > rewards[1] else sides[::-1])
    for group, rewards in zip(
        found, REWARDS, strict=True
    ):  # later turns answer states of their own
        for episode, reward in zip(group, rewards, strict=True):
            episode.step_rewards = [reward]
            later = (t for r in episode.rollouts.values() for t in spoken(r)[1:])
            good += [(turn, reward) for turn in later if reward > 0.5]
            for turn in episode.turns:
                turn.reward, turn.step = reward, 0
    preferred = np.mean(
        [of_margin(gain(c, said) - gain(r, said), "sigmoid", 0.1, 0) for c, r in pairs]
    )
    imitated = -np.concatenate([said(turn) for turn, _ in good]).mean()
    algorithm = MALT(dpo_coef=0.7, sft_coef=0.4)
    sums = computed(algorithm, found, said, cut)
    assert algorithm.metrics["good_answers"] == len(good) and len(pairs) == 3
    assert sums["dpo_loss"] == pytest.approx(preferred, rel=1e-6)
    assert sums["sft_loss"] == pytest.approx(imitated, rel=1e-6)
    assert sums["loss"] == pytest.approx(0.7 * preferred + 0.4 * imitated, rel=1e-6)


# -- scorers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 2, 99])
@pytest.mark.parametrize("centre", [0.0, 0.3])
def test_scores_of_conversations_by_hand(centre: float, cut: int) -> None:
    """Each side has one score, read where it ends: not one for every turn."""
    found = groups()
    ends = [
        [(*side[-1].prompt_ids, *side[-1].completion_ids) for side in pair]
        for pair in compared(found)
    ]
    rng = np.random.default_rng(2)
    scores = {end: float(rng.normal()) for pair in ends for end in pair}

    def read(turn: Turn) -> np.ndarray:
        assert len(turn) == 1
        return np.array([scores[tuple(turn.prompt_ids)]])

    rows = [(scores[chosen], scores[rejected]) for chosen, rejected in ends]
    losses = [-log_sigmoid(good - bad) + centre * (good + bad) ** 2 for good, bad in rows]
    algorithm = BradleyTerry(center_rewards_coefficient=centre)
    sums = computed(algorithm, found, says(), cut, read)
    assert algorithm.metrics == {"frac_dropped_pairs": pytest.approx(1 / 6)}
    expected = {
        "loss": np.mean(losses),
        "rewards/chosen": np.mean([good for good, _ in rows]),
        "rewards/rejected": np.mean([bad for _, bad in rows]),
        "rewards/margins": np.mean([good - bad for good, bad in rows]),
        "rewards/accuracies": np.mean([good > bad for good, bad in rows]),
    }
    assert sums == pytest.approx(expected, rel=1e-9)


# -- given words -----------------------------------------------------------------------------------


def cloned(found: list[Group], said: Said) -> list[dict[str, Any]]:
    """A row for each token that somebody said, in the columns that `averaged` reads."""
    table: list[dict[str, Any]] = []
    sequences = 0
    for group in found:
        for rollout in (r for e in group for r in e.rollouts.values()):
            part = [*spoken(rollout)]
            sequences += bool(part)
            for turn in part:
                row = {
                    "sequence": sequences,
                    "turn": id(turn),
                    "agent": turn.agent,
                    "turn size": len(turn),
                    "sequence size": size(part),
                    "turns": len(part),
                }
                table += [row | {"said": number} for number in said(turn)]
    return table


@pytest.mark.parametrize("cut", [1, 4, 99])
@pytest.mark.parametrize(
    "how", sorted({*AVERAGE.values(), "turn_mean_token_sum", "agent_balanced"})
)
def test_given_words_by_hand(how: Any, cut: int) -> None:
    found, said = groups(), says()
    failed = replace(found[0].episodes[0], status="error")
    found.append(Group([failed], "t"))
    table = cloned(found[:-1], said)
    assert len({row["sequence"] for row in table}) == 11 and len(table) == 47
    expected = averaged(table, [-row["said"] for row in table], how)
    sums = computed(SFT(aggregation=how), found, said, cut)
    entropy = np.mean([-row["said"] / 2 for row in table])
    assert sums == pytest.approx(
        {"loss": expected, "policy_loss": expected, "entropy": entropy}, rel=1e-6
    )


def answers(found: list[Group], said: Said) -> list[float]:
    """What is said of the tokens that the world answers trained turns with, where the next prompt
    goes on from there, and after the last one."""
    words: list[np.ndarray] = []
    for rollout in (r for group in found for e in group for r in e.rollouts.values()):
        for place, turn in enumerate(rollout.turns, 1):
            after = rollout.turns[place] if place < len(rollout.turns) else None
            history = [*turn.prompt_ids, *turn.completion_ids]
            ids = rollout.tail_ids if after is None else after.prompt_ids[len(history) :]
            goes_on = after is None or after.prompt_ids[: len(history)] == history
            if turn.trained and goes_on and ids:
                words.append(said(Turn(turn.agent, "p", history, list(ids))))
    return np.concatenate(words).tolist()


@pytest.mark.parametrize("cut", [1, 3, 99])
def test_the_world_s_words_by_hand(cut: int) -> None:
    found, said = groups(), says()
    world, own = answers(found, said), [row["said"] for row in cloned(found, said)]
    assert len(world) == 26
    sums = computed(SFT(mode="world_model"), found, said, cut)
    assert sums["loss"] == pytest.approx(-np.mean(world), rel=1e-9)
    both = SFT(mode="combined", bc_weight=0.7, world_model_weight=0.3)
    sums = computed(both, found, said, cut)
    assert sums["loss"] == pytest.approx(-0.7 * np.mean(own) - 0.3 * np.mean(world), rel=1e-6)


# -- what a model says -----------------------------------------------------------------------------


def forward(model: Any) -> Said:
    """Log-probs of a turn's tokens, in the model's own forward over one conversation."""

    def said(turn: Turn) -> np.ndarray:
        ids, start = [*turn.prompt_ids, *turn.completion_ids], len(turn.prompt_ids)
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        return logits[range(start - 1, len(ids) - 1), turn.completion_ids].numpy()

    return said


@pytest.mark.parametrize("max_tokens", [30, 4000])
@pytest.mark.parametrize("kind", ["dpo", "sft", "score"])
def test_a_learner_s_loss_is_that_of_the_model(
    kind: str, max_tokens: int, model: Any, tokenizer: Any
) -> None:
    """In as many micro-batches as there are pairs or conversations, and in one."""
    found, settings = groups(), LearnerSettings(max_tokens=max_tokens)
    algorithm = {"dpo": DPO(), "sft": SFT(), "score": BradleyTerry()}[kind]
    policy, said = Policy("p", model, tokenizer), forward(model)
    pairs = compared(found)
    learner = Learner(policy, None, algorithm, settings=settings)
    if kind == "dpo":
        margins = [gain(chosen, said) - gain(rejected, said) for chosen, rejected in pairs]
        expected = np.mean([of_margin(margin, "sigmoid", 0.1, 0) for margin in margins])
    elif kind == "sft":
        expected = np.mean([-row["said"] for row in cloned(found, said)])
    else:
        assert policy.value_head is not None
        torch.nn.init.normal_(policy.value_head.linear.weight, generator=torch.manual_seed(0))
        weight = policy.value_head.linear.weight.detach()[0]

        def score(side: list[Turn]) -> float:
            ids = torch.tensor([[*side[-1].prompt_ids, *side[-1].completion_ids]])
            with torch.no_grad():
                return float(model.model(ids).last_hidden_state[0, -1] @ weight)

        expected = np.mean([-log_sigmoid(score(c) - score(r)) for c, r in pairs])
    algorithm.credit(found)
    samples = algorithm.samples(found, "p")
    metrics = run_async(learner.update(samples, algorithm, 0, 0))
    assert metrics["loss"] == pytest.approx(expected, rel=1e-4)
