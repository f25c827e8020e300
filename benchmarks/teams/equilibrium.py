"""Greedy joint policies, computed from the probabilities of a policy in all states of a game: their
exact reward, and the most that one agent can gain by deviating alone."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from benchmarks.teams.base import Talk, letters_of
from benchmarks.teams.settings import ARMS, Arm
from mrlm import Callback
from mrlm.core.types import Message, Role, StepResult, Task
from mrlm.workflows.majority_vote import MajorityVote

Asked = tuple[str, Talk]
"""An agent and the conversation that it answers."""
Answers = Callable[[Sequence[Asked]], list[str]]
"""The answers of a deterministic joint policy."""
EXACT = 1e-6
"""Rewards that differ by less are equal."""
REPEATS = 20
"""States are complete after so many tasks for each known state without a new one."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The greedy joint policy at the end of a run.

    Args:
        value: its expected reward.
        gain: the most that an agent can add to the team's expected reward by another policy of its
            own, while the others keep theirs (exploitability); 0 in a Nash equilibrium of the game
            with the team's reward. `None` where deviations are not enumerated.
    """

    value: float
    gain: float | None


class Joint:
    """The environment of an arm as all its agents play it; voters are merged into one answer.

    Args:
        arm: which.
    """

    def __init__(self, arm: Arm) -> None:
        from mrlm.build.environments import environment_factory
        from mrlm.config.play_sections import EnvironmentConfig

        self.arm = arm
        self.env: Any = environment_factory(EnvironmentConfig(**arm.environment))
        self.vote: MajorityVote | None = MajorityVote() if arm.workflow else None

    @cached_property
    def states(self) -> list[tuple[float, Task]]:
        """Probability and task of every state of the evaluation."""
        found: dict[str, Task] = {}
        last = number = 0
        while number < last + REPEATS * max(len(found), 5):
            task = self.env.task(number, "eval")
            shown = json.dumps([task.info, [message.content for message in task.prompt]])
            if shown not in found:
                found[shown], last = task, number
            number += 1
        chance = getattr(self.env, "chance", lambda task: 1 / len(found))
        return [(chance(task), task) for task in found.values()]

    def play(self, task: Task, played: Iterable[dict[str, str]]) -> StepResult:
        """The result of joint answers in a state."""
        result = self._seen(self.env.reset(task))
        for texts in played:
            if self.vote is not None:
                votes = [texts[name] for name in self.arm.agents]
                texts = {self.env.agents[0]: votes[self.vote.elected(votes)]}
            messages = {name: Message(text, Role.ASSISTANT, name) for name, text in texts.items()}
            result = self._seen(self.env.step(messages))
        return result

    def _seen(self, result: StepResult) -> StepResult:
        """The result with an observation for every voter."""
        if self.vote is None or not result.observations:
            return result
        (seen,) = result.observations.values()
        return replace(result, observations=dict.fromkeys(self.arm.agents, seen))


@dataclass(slots=True)
class Node:
    """A state of the game after joint answers.

    Args:
        weight: probability of the state at the start.
        task: that state.
        played: joint answers since.
        talks: conversation of every agent.
        reward: mean reward of the agents so far.
        asked: agents that answer next; none at the end.
    """

    weight: float
    task: Task
    played: tuple[dict[str, str], ...] = ()
    talks: dict[str, Talk] = field(default_factory=dict)
    reward: float = 0.0
    asked: tuple[str, ...] = ()


def judged(name: str, answers: Answers) -> Ending:
    """The exact value of a deterministic joint policy, and the gain of the best deviation.

    Args:
        name: of the arm, which is the game and its agents.
        answers: the policy.
    """
    joint, arm = joint_of(name), ARMS[name]
    starts = [opened(joint, weight, task) for weight, task in joint.states]
    ends = starts
    while any(node.asked for node in ends):
        ends = greedy_step(joint, ends, answers)
    value = sum(node.weight * node.reward for node in ends)
    if not arm.enumerated:
        return Ending(value, None)
    if len(arm.agents) == 1:  # it controls everything
        return Ending(value, max(0.0, arm.best - value))
    best = max(response(joint, name, starts, answers) for name in arm.agents)
    return Ending(value, max(0.0, best - value))


@lru_cache(maxsize=32)
def joint_of(name: str) -> Joint:
    """The environment of an arm, whose states are found once."""
    return Joint(ARMS[name])


def opened(joint: Joint, weight: float, task: Task) -> Node:
    """A state before any answer."""
    return observed(Node(weight, task), joint.play(task, ()))


def observed(node: Node, result: StepResult) -> Node:
    """The node with what agents see."""
    shown = {} if result.done else result.observations
    talks = dict(node.talks)
    for name, seen in shown.items():
        before = () if seen.info.get("new_conversation") else talks.get(name, ())
        talks[name] = (
            *before,
            *((message.role.value, message.content) for message in seen.messages),
        )
    rewards = [reward.value for reward in result.rewards.values()]
    gained = sum(rewards) / len(rewards) if rewards else 0.0
    return replace(node, talks=talks, reward=node.reward + gained, asked=tuple(shown))


def answered(joint: Joint, node: Node, texts: dict[str, str]) -> Node:
    """The node after answers of all agents that were asked."""
    played = (*node.played, texts)
    talks = dict(node.talks)
    for name, text in texts.items():
        talks[name] = (*talks[name], ("assistant", text))
    return observed(replace(node, played=played, talks=talks), joint.play(node.task, played))


def greedy_step(joint: Joint, nodes: Sequence[Node], answers: Answers) -> list[Node]:
    """The nodes after the next answers of the policy."""
    asked = [(name, node.talks[name]) for node in nodes for name in node.asked]
    texts = iter(answers(asked))
    chosen = [{name: next(texts) for name in node.asked} for node in nodes]
    return [
        answered(joint, node, given) if given else node
        for node, given in zip(nodes, chosen, strict=True)
    ]


def response(joint: Joint, agent: str, nodes: Sequence[Node], answers: Answers) -> float:
    """The highest expected reward that one agent can reach against the policy of the others. It
    chooses an answer for each conversation, so the same one in states that it cannot distinguish.

    Args:
        joint: the game.
        agent: which.
        nodes: states of the game.
        answers: the policy.
    """
    total, groups = 0.0, dict[Talk, list[Node]]()
    while nodes:
        total += sum(node.weight * node.reward for node in nodes if not node.asked)
        for node in nodes:
            if agent in node.asked:
                groups.setdefault(node.talks[agent], []).append(node)
        others = [node for node in nodes if node.asked and agent not in node.asked]
        nodes = greedy_step(joint, others, answers)
    letters = letters_of(joint.arm, agent)
    for group in groups.values():
        beside = [tuple(name for name in node.asked if name != agent) for node in group]
        asked = [
            (name, node.talks[name])
            for node, names in zip(group, beside, strict=True)
            for name in names
        ]
        texts = iter(answers(asked))
        given = [{name: next(texts) for name in names} for names in beside]
        total += max(
            response(
                joint,
                agent,
                [
                    answered(joint, node, {**each, agent: text})
                    for node, each in zip(group, given, strict=True)
                ],
                answers,
            )
            for text in map("".join, itertools.product(letters, repeat=joint.arm.length))
        )
    return total


class Trained(Callback):
    """Keeps the run until it has ended, for its policies."""

    def __init__(self) -> None:
        self.run: Any = None

    def on_train_end(self, run: Any) -> None:
        self.run = run


class GreedyAnswers:
    """The most probable answer of the trained policies to each conversation, token by token.

    Args:
        run: a run of the library.
    """

    def __init__(self, run: Any) -> None:
        self.settings: Any = run.evaluator.settings_of
        self.policies: dict[str, Any] = {each.policy: each.weights_of for each in run.learners}
        self.known: dict[Asked, str] = {}

    def __call__(self, asked: Sequence[Asked]) -> list[str]:
        groups: dict[tuple[str, int], list[tuple[Asked, list[int]]]] = {}
        for each in dict.fromkeys(asked):
            if each not in self.known:
                settings = self.settings[each[0]]
                ids = prompt_ids(settings.chat, each[1])
                groups.setdefault((settings.policy, len(ids)), []).append((each, ids))
        for (name, _), rows in groups.items():
            settings = self.settings[rows[0][0][0]]
            texts = self._decoded(name, [ids for _, ids in rows], settings)
            self.known |= {each: text for (each, _), text in zip(rows, texts, strict=True)}
        return [self.known[each] for each in asked]

    def _decoded(self, name: str, rows: list[list[int]], settings: Any) -> list[str]:
        """Texts for prompts of equal length."""
        import torch

        policy = self.policies[name]
        ids = torch.tensor(rows)
        start, ended = ids.shape[1], torch.zeros(len(rows), dtype=torch.bool)
        with policy.scoring(), policy.active() as model:
            for _ in range(settings.sampling.max_new_tokens):
                best = model(input_ids=ids).logits[:, -1].argmax(-1)
                best[ended] = policy.pad_id
                ended |= torch.isin(best, torch.tensor(sorted(policy.eos_ids)))
                ids = torch.cat([ids, best[:, None]], 1)
        return [settings.chat.decode(row[start:].tolist()) for row in ids]


def prompt_ids(chat: Any, talk: Talk) -> list[int]:
    """Token ids of a conversation, in which the agent's own answers end where they were cut."""
    return chat.prompt([Message(content, Role(role)) for role, content in talk]).ids
