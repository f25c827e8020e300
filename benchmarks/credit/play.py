"""Episodes of a solved game as the library's own records, by the plans that algorithms ask for."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Literal

import numpy as np

from benchmarks.credit.exact import Solved, cumulative
from benchmarks.credit.games import State
from benchmarks.credit.replays import Change, changes
from mrlm.core.episodes import Episode, Group
from mrlm.core.replayed import Replays
from mrlm.core.types import Message, Rollout, Task, Turn

Plan = Literal["chain", "greedy", "tree", "pruned_tree", "cross"] | Replays
"""`chain`: sibling episodes. `greedy`: one more, which takes the likeliest actions. `tree`: several
answers to every state; `pruned_tree`: only the best is continued. `cross`: all combinations of the
agents' answers. `Replays`: sibling episodes, and replays of each with a decision changed."""
BRANCHES = 2
"""Continuations of every state of a tree after the first."""


@dataclass
class Played:
    """A batch of groups, and what its gradient is made of.

    Args:
        groups: the groups.
        evaluations: joint steps that the game was asked for.
        turns: all trained turns.
        states: the state of each of them.
    """

    groups: list[Group] = field(default_factory=list)
    evaluations: int = 0
    turns: list[Turn] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    def gradient(self, solved: Solved, scale: float) -> np.ndarray:
        """The sum (size,) of advantage times the gradient of the log-prob over all turns."""
        weights = np.array([_advantage(turn) for turn in self.turns]) * scale
        starts = [
            solved.places[turn.agent, solved.game.seen(state, turn.agent)].start
            for turn, state in zip(self.turns, self.states, strict=True)
        ]
        acts = [turn.completion_ids[0] for turn in self.turns]
        total = np.bincount(np.add(starts, acts), weights, solved.size)
        sums = np.bincount(starts, weights, solved.size)
        for place, where in solved.places.items():
            total[where] -= sums[where.start] * solved.policies[place]
        return total

    def fidelity(self, solved: Solved) -> float:
        """Correlation of the advantages with the true ones of the messages; nan where either is
        constant."""
        pairs = zip(self.turns, self.states, strict=True)
        true = [solved.advantage(state, t.agent, t.completion_ids[0]) for t, state in pairs]
        given = np.array([_advantage(turn) for turn in self.turns])
        if np.std(true) == 0 or given.std() == 0:
            return float("nan")
        return float(np.corrcoef(true, given)[0, 1])


def _advantage(turn: Turn) -> float:
    return 0.0 if turn.advantages is None else float(np.ravel(turn.advantages)[0])


@dataclass
class _Branch:
    """An episode that is being played."""

    state: State
    episode: Episode
    path: tuple[int, ...] = ()


class Player:
    """Plays batches of a solved game.

    Args:
        solved: the game and its policies.
        seed: of all draws.
    """

    def __init__(self, solved: Solved, seed: int) -> None:
        self.solved, self.game = solved, solved.game
        self.rng = np.random.default_rng(seed)
        self.batch = Played()

    def play(self, plan: Plan, groups: int, siblings: int) -> Played:
        """A batch of groups of sibling episodes."""
        self.batch = Played()
        chances = [chance for chance, _ in self.game.starts]
        play: Callable[[State, int, int], Group]
        if isinstance(plan, Replays):
            play = partial(self._replayed, plan)
        else:
            play = {
                "chain": self._chain,
                "greedy": self._greedy,
                "tree": self._tree,
                "pruned_tree": self._pruned,
                "cross": self._cross,
            }[plan]
        for number in range(groups):
            _, start = self.game.starts[self.rng.choice(len(chances), p=chances)]
            self.batch.groups.append(play(start, number, siblings))
        return self.batch

    # -- plans ------------------------------------------------------------------------------------

    def _chain(self, start: State, number: int, siblings: int) -> Group:
        task = Task(f"t{number}")
        return Group([self._whole(start, task, k) for k in range(siblings)], task.id)

    def _greedy(self, start: State, number: int, siblings: int) -> Group:
        group = self._chain(start, number, siblings)
        group.episodes.append(self._whole(start, Task(f"t{number}"), siblings, greedy=True))
        return group

    def _whole(self, start: State, task: Task, place: int, greedy: bool = False) -> Episode:
        branch = self._branch(start, task, (place,))
        while branch.state is not None:
            self._step(branch, self._acts(branch.state, greedy), trained=not greedy)
        branch.episode.greedy = greedy
        return branch.episode.close("done")

    def _replayed(self, asked: Replays, start: State, number: int, siblings: int) -> Group:
        """Replays are played from the changed joint step on: only these steps are counted."""
        group = self._chain(start, number, siblings)
        for episode in list(group):
            mine = {id(turn) for turn in episode.turns}
            pairs = zip(self.batch.turns, self.batch.states, strict=True)
            found = {turn.step: state for turn, state in pairs if id(turn) in mine}
            states = [found[step] for step in sorted(found)]
            for change in changes(self.game, episode, states, asked, self._acts):
                group.episodes.append(self._changed(change, episode, states))
        return group

    def _changed(self, change: Change, episode: Episode, states: list[State]) -> Episode:
        branch = self._branch(states[change.start], episode.task, episode.path)
        branch.episode.replayed = change.mark
        branch.episode.step_rewards = list(episode.step_rewards[: change.start])
        branch.episode.reward = sum(branch.episode.step_rewards)
        for agent, rollout in episode.rollouts.items():
            before = [_context(turn) for turn in rollout.turns if turn.step < change.start]
            branch.episode.rollouts[agent].turns = before
        while branch.state is not None:
            acts, trained = change.choose(branch.state, len(branch.episode.step_rewards))
            agents = self.game.acting(branch.state)
            self._step(branch, acts, trained=[agent in trained for agent in agents])
        return branch.episode.close("done")

    def _cross(self, start: State, number: int, siblings: int) -> Group:
        """Every combination of the answers; an answer is trained once, in its first episode."""
        task, agents = Task(f"t{number}"), self.game.acting(start)
        answers = [self._acts(start) for _ in range(siblings)]
        found = []
        for place, chosen in enumerate(product(range(siblings), repeat=len(agents))):
            branch = self._branch(start, task, (place,))
            acts = tuple(answers[choice][k] for k, choice in enumerate(chosen))
            first = [all(c == 0 for j, c in enumerate(chosen) if j != k) for k in range(len(acts))]
            self._step(branch, acts, trained=first)
            assert branch.state is None, "combinations are of games of one step"
            branch.episode.answers = dict(zip(agents, chosen, strict=True))
            found.append(branch.episode.close("done"))
        return Group(found, task.id)

    def _tree(self, start: State, number: int, siblings: int) -> Group:
        return self._grown(start, number, siblings, prune=False)

    def _pruned(self, start: State, number: int, siblings: int) -> Group:
        return self._grown(start, number, siblings, prune=True)

    def _grown(self, start: State, number: int, siblings: int, prune: bool) -> Group:
        task = Task(f"t{number}")
        ended: list[Episode] = []
        level = [[self._branch(start, task, (k,)) for k in range(siblings)]]
        while level:
            following = []
            for answers in level:  # to one state
                for branch in answers:
                    self._step(branch, self._acts(branch.state))
                best = max(answers, key=lambda each: each.episode.step_rewards[-1])
                for branch in answers:
                    if branch.state is None:
                        ended.append(branch.episode.close("done"))
                    elif prune and branch is not best:
                        branch.episode.pruned = True
                        ended.append(branch.episode.close("truncated"))
                    else:
                        following.append([self._fork(branch, k) for k in range(BRANCHES)])
            level = following
        return Group(ended, task.id)

    # -- episodes ---------------------------------------------------------------------------------

    def _branch(self, start: State, task: Task, path: tuple[int, ...]) -> _Branch:
        rollouts = {agent: Rollout(agent, agent, task.id) for agent in self.game.actions}
        name = f"{task.id}/{'.'.join(map(str, path))}"
        return _Branch(start, Episode(name, task, rollouts, path=path), path)

    def _fork(self, branch: _Branch, place: int) -> _Branch:
        """A continuation; only in the first are the turns before it trained."""
        made = copy.copy(branch)
        made.path = (*branch.path, place)
        episode = branch.episode
        made.episode = copy.copy(episode)
        made.episode.path, made.episode.id = made.path, f"{episode.id}.{place}"
        made.episode.step_rewards = list(episode.step_rewards)
        made.episode.rollouts = {}
        for agent, rollout in episode.rollouts.items():
            turns = rollout.turns if place == 0 else [_context(turn) for turn in rollout.turns]
            made.episode.rollouts[agent] = Rollout(agent, agent, rollout.task_id, list(turns))
        return made

    def _acts(self, state: State, greedy: bool = False) -> tuple[int, ...]:
        agents = self.game.acting(state)
        if greedy:
            return tuple(int(self.solved.policy(state, agent).argmax()) for agent in agents)
        seen, draws = self.game.seen, self.solved.draws
        return tuple(self._drawn(draws[agent, seen(state, agent)][0]) for agent in agents)

    def _drawn(self, chances: list[float]) -> int:
        """A place by its cumulative probabilities."""
        return bisect_right(chances, self.rng.random())

    def _step(
        self, branch: _Branch, acts: tuple[int, ...], trained: bool | Sequence[bool] = True
    ) -> None:
        """Plays one joint step."""
        state, episode = branch.state, branch.episode
        agents = self.game.acting(state)
        outcomes = self.game.step(state, acts)
        chosen = self._drawn(cumulative([chance for chance, _, _ in outcomes]))
        _, branch.state, rewards = outcomes[chosen]
        paid = self.game.paid(state, rewards)
        number = len(episode.step_rewards)
        for place, (agent, act) in enumerate(zip(agents, acts, strict=True)):
            rollout = episode.rollouts[agent]
            logprobs = self.solved.draws[agent, self.game.seen(state, agent)][1]
            turn = Turn(
                agent,
                agent,
                [1, number],
                [act],
                [logprobs[act]],
                Message(str(act)),
                step=number,
                index=len(rollout.turns),
                node="/".join(map(str, branch.path[1:])),
                trained=trained if isinstance(trained, bool) else trained[place],
            )
            rollout.turns.append(turn)
            if turn.trained:
                self.batch.turns.append(turn)
                self.batch.states.append(state)
        for agent, reward in paid.items():
            if episode.rollouts[agent].turns:
                episode.rollouts[agent].turns[-1].reward += reward
        episode.step_rewards.append(sum(paid.values()) / len(paid))
        episode.reward += episode.step_rewards[-1]
        self.batch.evaluations += 1


def _context(turn: Turn) -> Turn:
    made = copy.copy(turn)
    made.trained = False
    return made
