"""Episodes as worlds and engines leave them, and a causal model of a few lines."""

import copy
import random
from typing import Any

import numpy as np
import torch
from benchmarks.worlds import reward_of

from mrlm.core import registry
from mrlm.core.episodes import Episode, Group
from mrlm.core.replayed import ReplayMark, Replays, coalitions
from mrlm.core.types import (
    Message,
    Observation,
    Reward,
    Rollout,
    SamplingParams,
    StepResult,
    Task,
    Turn,
)
from mrlm.environments.texts.length import LengthEnvironment
from mrlm.learn.data.batch import Batch, Outputs, Sample, merge, pack
from mrlm.learn.fast.lm_head import Distributions

VOCABULARY = 11


class Prefix(torch.nn.Module):
    """A causal model in six lines: logits and value at a place depend on every token up to it."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embedding = torch.nn.Parameter(torch.randn(VOCABULARY, 6, generator=generator))
        self.output = torch.nn.Parameter(torch.randn(6, VOCABULARY, generator=generator))
        self.value = torch.nn.Parameter(torch.randn(6, generator=generator))

    def forward(self, batch: Batch) -> Outputs:
        grid = batch.grid
        mask = grid.attention_mask[..., None]
        history = torch.tanh((self.embedding[grid.input_ids] * mask).cumsum(1))  # (B, T, 6)
        hidden = history[:, grid.keep][batch.sequence, grid.column]  # (N, 6)
        logprobs = (hidden @ self.output / batch.temperature[:, None]).log_softmax(-1)
        chosen = logprobs.gather(-1, batch.tokens[:, None]).squeeze(-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        return Outputs(chosen, entropy, hidden @ self.value, Distributions(logprobs))


def make(name: str) -> Any:
    return registry.load("algorithms", name)()


def play(algorithm: Any, seed: int = 0, num_groups: int = 3, size: int = 4) -> list[Group]:
    """Ragged episodes of two agents in two joint steps, as a world and an engine leave them."""
    rng = random.Random(seed)
    pairs = algorithm.spec.unit == "pair"
    groups = []
    for number in range(num_groups):
        episodes = []
        opening = {agent: [1 + number, index] for index, agent in enumerate("ab")}
        for place in range(2 if pairs else size):
            paid = [rng.random(), rng.random()]
            rollouts = {}
            for agent in "ab":
                turns, prompt = [], list(opening[agent])
                for step in range(1 if pairs else 2):
                    said = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 4))]
                    turn = Turn(agent, "p", list(prompt), [*said, 3 + place], step=step, index=step)
                    turn.reward = paid[step] * (1.0 if agent == "a" else 0.5)
                    turn.sampling = SamplingParams(max_new_tokens=8, temperature=0.8)
                    turns.append(turn)
                    prompt = [*prompt, *turn.completion_ids, 9, 2]
                rollouts[agent] = Rollout(agent, "p", f"t{number}", turns, tail_ids=[9, 4])
            task = Task(f"t{number}")
            episode = Episode(f"{number}-{place}", task, rollouts, sum(paid), paid, "done")
            if algorithm.spec.sampling.tree:
                episode.path = (place, 0)
            episodes.append(episode)
        if algorithm.spec.sampling.greedy:
            episodes[-1].greedy = True
            for turn in episodes[-1].turns:
                turn.trained = False
        if algorithm.spec.sampling.replays is not None:
            episodes += replayed(episodes, algorithm.spec.sampling.replays, rng)
        groups.append(Group(episodes, f"t{number}"))
    return groups


def replayed(episodes: list[Episode], asked: Replays, rng: random.Random) -> list[Episode]:
    """The replays of episodes: with another completion and another reward from the changed turn on,
    or with an empty message of some agents and another reward."""
    found = []
    for episode in episodes:
        agents = sorted(episode.rollouts)
        sets: list[tuple[tuple[str, ...], int | None]] = [
            ((turn.agent,), turn.index) for turn in episode.turns
        ]
        if asked.kind == "silence":
            sets = [((agent,), None) for agent in agents]
        if asked.kind == "coalitions":
            sets = [(tuple(sorted(each)), None) for each in coalitions(agents)]
        for changed, index in sets:
            for _ in range(asked.count):
                again = copy.deepcopy(episode)
                again.id = f"{episode.id}~{len(found)}"
                again.replayed = ReplayMark(episode.id, asked.kind, changed, index)
                for turn in again.turns:
                    turn.trained = (turn.agent, turn.index) == (changed[0], index)
                    if turn.trained:
                        said = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 4))]
                        turn.completion_ids = [*said, len(found) % VOCABULARY]
                *before, last = again.step_rewards
                again.step_rewards = [*before, last + rng.random() - 0.5]
                again.reward = sum(again.step_rewards)
                found.append(again)
    return found


def samples_of(groups: list[Group], unit: str, credited: bool) -> list[Sample]:
    samples: list[Sample] = []
    units: dict[Any, int] = {}
    for number, group in enumerate(groups):
        for place, episode in enumerate(group):
            if episode.failed:
                continue
            for agent, rollout in episode.rollouts.items():
                turns = [t for t in rollout.turns if not credited or t.advantages is not None]
                for sample in merge(turns):
                    keys = {"turn": len(samples), "pair": (number, agent)}
                    key = keys.get(unit, (number, place))
                    sample.unit = units.setdefault(key, len(units))
                    samples.append(sample)
    return samples


def fill(groups: list[Group], algorithm: Any, policy: Prefix, sampler: Prefix) -> None:
    """What engines and learners write on turns before credit."""
    samples = samples_of(groups, "turn", credited=False)
    batch = pack(samples)
    with torch.no_grad():
        sampled, reference = sampler(batch), Prefix(7)(batch)
        trained = policy(batch)
    columns = {"logprobs": sampled.logprobs}
    if "old_logprobs" in algorithm.spec.columns:
        columns["old_logprobs"] = trained.logprobs
    if "ref_logprobs" in algorithm.spec.columns:
        columns["ref_logprobs"] = reference.logprobs
    if "values" in algorithm.spec.columns:
        columns["values"] = trained.values
    if "entropies" in algorithm.spec.columns:
        columns["entropies"] = trained.entropy
    for name, column in columns.items():
        for number, turn in enumerate(batch.turns):
            setattr(turn, name, column[batch.turn == number].tolist())


def moved(policy: Prefix) -> Prefix:
    """A policy a little way from another: the one that sampled, before the other learned."""
    sampler = copy.deepcopy(policy)
    with torch.no_grad():
        sampler.output += 0.05 * torch.randn(6, VOCABULARY, generator=torch.manual_seed(3))
    return sampler


def credited(algorithm: Any, seed: int = 0) -> tuple[list[Group], Prefix]:
    """Groups with credit, played by a policy that the trained one has moved away from a little."""
    policy = Prefix()
    groups = play(algorithm, seed)
    fill(groups, algorithm, policy, moved(policy))
    algorithm.credit(groups)
    return groups, policy


def learn(algorithm: Any, policy: Prefix, batches: list[Batch]) -> tuple[float, torch.Tensor, dict]:
    """Summed loss, gradient and metrics of the micro-batches of one optimiser batch."""
    policy.zero_grad()
    total, metrics = 0.0, {}
    for batch in batches:
        if algorithm.spec.compares:
            batch.reference = Prefix(7)(batch).distributions
        loss = algorithm.loss(batch, policy(batch))
        loss.backward()
        total += loss.item()
        for name, value in loss.metrics.items():
            metrics[name] = metrics.get(name, 0.0) + float(value)
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.parameters()]
    return total, torch.cat([part.flatten() for part in parts]), metrics


def whole(algorithm: Any, groups: list[Group]) -> list[Batch]:
    return [pack(algorithm.samples(groups, "p"))]


def by_text(groups: list[Group]) -> dict[Any, list[float]]:
    """Advantages by what was said, wherever it stands."""
    return {
        (turn.agent, tuple(turn.prompt_ids), tuple(turn.completion_ids)): np.broadcast_to(
            np.asarray(turn.advantages, dtype=float), len(turn)
        ).tolist()
        for group in groups
        for episode in group
        for turn in episode.turns
        if turn.trained
    }


class Noise(LengthEnvironment):
    """Two seats that speak at once, for a few rounds; every joint answer is worth something else,
    to each of them (or, with `alike`, that many times the same to both), so that there is always
    something to learn. With `uneven` an answer may end it sooner."""

    def __init__(
        self,
        agents: tuple[str, str] = ("short", "long"),
        rounds: int = 1,
        alike: float | None = None,
        uneven: bool = False,
    ) -> None:
        super().__init__(agents)
        self.uneven = uneven
        self.rounds = self.max_turns = rounds
        self.alike = alike

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.round = 0
        return super().reset(task, seed)

    def step(self, actions: dict[str, Message]) -> StepResult:
        self.round += 1
        said = "/".join(actions[agent].content for agent in self.agents)
        rewards = {agent: Reward(reward_of(f"{agent}: {said}")) for agent in self.agents}
        if self.alike is not None:
            rewards = dict.fromkeys(self.agents, Reward(self.alike * reward_of(said)))
        if self.round == self.rounds or (self.uneven and reward_of(said) > 0.5):
            return StepResult(rewards=rewards, done=True)
        again = {agent: Observation([Message("again:")]) for agent in self.agents}
        return StepResult(again, rewards)
