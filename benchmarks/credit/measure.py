"""Direction, scale and noise of an algorithm's credit against the true gradient of a game."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from benchmarks.credit.exact import Solved, states
from benchmarks.credit.games import Game, State
from benchmarks.credit.play import Plan, Played, Player
from mrlm.core import registry
from mrlm.core.errors import ConfigError, MRLMError
from mrlm.core.types import Turn
from mrlm.learn.bases.actor_critic import ActorCritic
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.credit.groups import clear

Critic = Literal["exact", "noisy", "no", "learned"]
"""Values that a critic gives: true ones; with errors as large as returns vary; or 0; or, where
policies are trained, means of the returns so far."""
BLOCKS = 20
"""Parts of a measurement, whose spread gives the intervals."""
EPISODES = 32
"""Episodes of a batch of chains."""


@dataclass(frozen=True)
class Entry:
    """An algorithm with settings.

    Args:
        algorithm: its name.
        settings: those that are not the default.
        critic: values where it reads any.
        games: names of the games it is for; `None`: all that it can play.
    """

    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    critic: Critic = "exact"
    games: tuple[str, ...] | None = None

    @property
    def title(self) -> str:
        """A short name, unique in the table."""
        given = {name: value for name, value in self.settings.items() if name != "group_size"}
        parts = [f"{name}={value}" for name, value in given.items()]
        parts += [f"{self.critic} critic"] if self.critic != "exact" else []
        return f"{self.algorithm} ({', '.join(parts)})" if parts else self.algorithm

    def build(self) -> Algorithm:
        """The algorithm."""
        return registry.load("algorithms", self.algorithm)(**self.settings)


@dataclass
class Measured:
    """An algorithm in a game.

    Args:
        game: the game.
        entry: title of the algorithm.
        cosine: between the mean of its gradients and the true one, 1 if it is unbiased.
        cosine_error: half width of its 95 % interval.
        scale: length of the mean gradient in the true direction, relative to the true one; only the
            algorithm's learning rate depends on it.
        snr: squared length of its mean gradient over its variance, times 1,000 over the joint steps
            played: signal-to-noise ratio of 1,000 evaluations of the game.
        snr_error: half width of its 95 % interval.
        fidelity: correlation of its advantages with the true advantage of each message, over what
            the others may do and what follows.
        evaluations: joint steps per batch.
        reason: why there are no numbers, if there are none.
        digest: equal for algorithms with bit-identical credit.
    """

    game: str
    entry: str
    cosine: float = float("nan")
    cosine_error: float = float("nan")
    scale: float = float("nan")
    snr: float = float("nan")
    snr_error: float = float("nan")
    fidelity: float = float("nan")
    evaluations: float = 0.0
    reason: str = ""
    digest: str = ""

    def record(self) -> dict[str, Any]:
        """The measurement as JSON."""
        return asdict(self)


def measure(
    game: Game, entries: Sequence[Entry], batches: int, seeds: Sequence[int] = (0, 1, 2)
) -> list[Measured]:
    """Measures algorithms in a game on the same episodes, as far as their plans are the same.

    Args:
        game: the game.
        entries: the algorithms.
        batches: batches of episodes per policy.
        seeds: of the policies; numbers are means over them.
    """
    found = [_Estimates(game, entry, batches) for entry in entries]
    for seed in seeds:
        solved = Solved.random(game, seed)
        plans: dict[tuple[Plan, int], list[_Estimates]] = {}
        for each in found:
            if not each.reason:
                plans.setdefault(each.plan, []).append(each)
        for (plan, siblings), several in plans.items():
            player = Player(solved, 100 + seed)
            for each in several:
                each.begin(solved)
            for _ in range(batches):
                played = player.play(plan, max(1, EPISODES // siblings), siblings)
                for each in several:
                    each.add(solved, played)
    return [each.measured() for each in found]


def plan_of(algorithm: Algorithm, game: Game) -> tuple[Plan, int]:
    """The plan by which episodes of a game are played for an algorithm, and the size of its groups.

    Raises:
        ConfigError: the game cannot be played by it.
    """
    spec = algorithm.spec.sampling
    siblings = algorithm.group_size
    if spec.cross is not None:
        if len({state[0] for state in states(game)}) > 1:
            raise ConfigError("combinations are of games of one joint step")
        if siblings ** len(game.actions) > spec.cross:
            raise ConfigError("too many combinations")
        return "cross", siblings
    if spec.replays is not None:
        return spec.replays, siblings
    if spec.tree:
        return ("pruned_tree" if spec.credits == "pruned_trees" else "tree"), siblings
    return ("greedy" if spec.greedy else "chain"), siblings


def annotate(algorithm: Algorithm, played: Played, value: Callable[[Turn, State], float]) -> None:
    """Writes the columns that an algorithm reads: the reference is the policy itself.

    Args:
        algorithm: the algorithm.
        played: its episodes.
        value: what its critic says of a turn in a state, if it has one.
    """
    for turn in played.turns:
        turn.ref_logprobs = turn.old_logprobs = turn.logprobs
        turn.full_kl = 0.0
    if not isinstance(algorithm, ActorCritic):
        return
    for turn, state in zip(played.turns, played.states, strict=True):
        mean, std = algorithm.units_of("team" if algorithm.spec.critic.of_team else turn.policy)
        turn.values = [(value(turn, state) - mean) / std]


def value_of(algorithm: Algorithm, solved: Solved, turn: Turn, state: State) -> float:
    """The true value of what the critic of an algorithm sees: a state, or an agent's part of it."""
    if algorithm.spec.critic.of_team:
        return solved.value(state)[turn.agent]
    return solved.seen_values[turn.agent, solved.game.seen(state, turn.agent)]


class _Estimates:
    """Gradients of an algorithm in one game, batch by batch."""

    def __init__(self, game: Game, entry: Entry, batches: int) -> None:
        self.game, self.entry, self.batches = game, entry, batches
        self.reason = ""
        self.plan: tuple[Plan, int] = ("chain", 1)
        self.gradients: list[list[np.ndarray]] = []
        self.evaluations: list[int] = []
        self.fidelity: list[list[float]] = []
        self.true: list[np.ndarray] = []
        self.rng = np.random.default_rng(11)
        self.agent = next(iter(game.actions))
        if entry.games is not None and game.name not in entry.games:
            self.reason = "not for this game"
            return
        try:
            self.algorithm = entry.build()
            self.plan = plan_of(self.algorithm, game)
            self.algorithm.check_agents({name: name for name in game.actions}, len(game.actions))
        except ConfigError as error:
            self.reason = str(error)

    def begin(self, solved: Solved) -> None:
        """Starts with a policy: anew, so that averages of earlier ones do not matter."""
        self.algorithm = self.entry.build()
        self.gradients.append([])
        self.fidelity.append([])
        self.true.append(solved.gradient)
        sampled = Player(solved, 1).play("chain", 1, 200).groups[0].episodes
        self.spread = float(np.std([e.rollouts[self.agent].reward for e in sampled]))

    def add(self, solved: Solved, played: Played) -> None:
        """Credits a batch."""
        if self.reason:
            return
        clear(played.groups)
        annotate(self.algorithm, played, partial(self._value, solved))
        try:
            self.algorithm.credit(played.groups)
        except MRLMError as error:
            self.reason = str(error)
            return
        size = len(played.groups) * self.plan[1]
        self.gradients[-1].append(played.gradient(solved, 1 / size))
        self.fidelity[-1].append(played.fidelity(solved))
        self.evaluations.append(played.evaluations)

    def _value(self, solved: Solved, turn: Turn, state: State) -> float:
        """What the critic of the entry says of a turn's state."""
        value = 0.0
        if self.entry.critic != "no":
            value = value_of(self.algorithm, solved, turn, state)
        if self.entry.critic == "noisy":
            value += self.spread * float(self.rng.normal())
        return value

    def measured(self) -> Measured:
        """The numbers: means over the policies, intervals by the spread of blocks."""
        result = Measured(self.game.name, self.entry.title, reason=self.reason)
        if self.reason:
            return result
        numbers = [
            numbers_of(np.array(rows[len(rows) // 10 :]), true)
            for rows, true in zip(self.gradients, self.true, strict=True)
        ]
        if not any(np.any(gradient) for rows in self.gradients for gradient in rows):
            result.reason = "no credit: it looks at the team's reward, which never changes here"
            return result
        result.evaluations = float(np.mean(self.evaluations))
        result.fidelity = float(
            np.mean([x for rows in self.fidelity for x in rows if x == x] or [np.nan])
        )
        result.cosine, result.scale, snr = np.mean([n[0] for n in numbers], axis=0).tolist()
        errors = np.sqrt(np.square([n[1] for n in numbers]).sum(0)) / len(numbers)
        result.cosine_error, result.snr_error = float(errors[0]), float(errors[2])
        result.snr = snr * 1000 / result.evaluations
        result.snr_error *= 1000 / result.evaluations
        last = np.concatenate([rows[-1] for rows in self.gradients])
        result.digest = hashlib.sha256(last.tobytes()).hexdigest()[:12]
        return result


def numbers_of(gradients: np.ndarray, true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosine, scale and signal-to-noise ratio (3,) of the mean of gradients (B, size), and half
    widths (3,) of their 95 % intervals by the jackknife over blocks.

    The squared length of a mean is too large by the variance of the mean, which is subtracted.
    """
    everything = _numbers(gradients, true)
    blocks = np.array_split(np.arange(len(gradients)), min(BLOCKS, len(gradients)))
    without = np.array([_numbers(np.delete(gradients, block, axis=0), true) for block in blocks])
    count = len(blocks)
    variance = (count - 1) / count * ((without - without.mean(0)) ** 2).sum(0)
    return everything, 1.96 * np.sqrt(variance)


def _numbers(gradients: np.ndarray, true: np.ndarray) -> np.ndarray:
    mean = gradients.mean(0)
    variance = float(((gradients - mean) ** 2).sum() / max(len(gradients) - 1, 1))
    squared = float(mean @ mean) - variance / len(gradients)
    along, length = float(mean @ true), float(np.sqrt(true @ true))
    cosine = along / (np.sqrt(squared) * length) if squared > 0 else float("nan")
    return np.array([cosine, along / length**2, squared / max(variance, 1e-30)])
