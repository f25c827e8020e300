"""An episode as a team sees it: its joint steps, and as text what everybody had read and said
before each of them. It knows no model: whoever asks brings the tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mrlm.core.episodes import Episode
from mrlm.core.types import Rollout, Turn

Decode = Callable[[Turn, Sequence[int]], str]
"""`decode(turn, ids)`: the text of some ids of a turn, by the tokenizer of its policy."""


@dataclass(slots=True)
class JointStep:
    """A step of the world in which somebody spoke.

    Args:
        turns: everybody's, those of frozen policies included; by agent, then in order.
        reward: what the team was paid from this step up to the next one that somebody spoke in.
        discount: of what comes after.
    """

    turns: list[Turn]
    reward: float = 0.0
    discount: float = 1.0

    @property
    def trained(self) -> list[Turn]:
        """The turns that tokens are trained of."""
        return [turn for turn in self.turns if turn.trained and turn.completion_ids]


def joint_steps(episode: Episode, gamma: float = 1.0) -> list[JointStep]:
    """The joint steps of an episode in order.

    Args:
        episode: without `step_rewards` its reward is that of the first step.
        gamma: discount from one step of the world to the next. A step in which nobody spoke (a
            scripted move) is part of the one before it.
    """
    rewards = episode.step_rewards or [episode.reward]
    found: dict[int, JointStep] = {}
    for turn in sorted(episode.turns, key=lambda turn: (turn.step, turn.agent, turn.index)):
        found.setdefault(turn.step, JointStep([])).turns.append(turn)
    ends = [*list(found)[1:], len(rewards)] if found else []
    for (start, step), end in zip(found.items(), ends, strict=True):
        step.reward = sum(gamma**i * reward for i, reward in enumerate(rewards[start:end]))
        step.discount = gamma ** max(end - start, 1)
    return list(found.values())


def chain(episode: Episode) -> Rollout:
    """Everybody's turns as those of one rollout: the agents of a joint step are consecutive
    decisions, in the order in which they were asked (by name where they were at once), and after
    the last of them comes the first of the next step."""
    turns = sorted(episode.turns, key=lambda turn: (turn.step, turn.order, turn.agent, turn.index))
    return Rollout(task_id=episode.task.id, turns=turns)


def in_rounds(steps: Sequence[JointStep]) -> list[list[JointStep]]:
    """Joint steps in rounds: a round ends before somebody speaks a second time. Where everybody
    speaks in every step, each is a round of its own; where agents take turns, one turn of each is a
    round."""
    found: list[list[JointStep]] = []
    spoke: set[str] = set()
    for step in steps:
        agents = {turn.agent for turn in step.turns}
        if not found or spoke & agents:
            found.append([])
            spoke = set()
        found[-1].append(step)
        spoke |= agents
    return found


def as_one(steps: Sequence[JointStep]) -> JointStep:
    """Joint steps that follow one another as one."""
    whole = JointStep([])
    for step in steps:
        whole.turns = [*whole.turns, *step.turns]
        whole.reward += whole.discount * step.reward
        whole.discount *= step.discount
    return whole


def own_texts(rollout: Rollout, decode: Decode) -> list[tuple[Turn, str, str]]:
    """An agent's conversation as it went on: each of its turns with what the agent read since its
    last one, and with what it said then."""
    story = _Story(decode)
    return [(turn, story.read(turn), story.say(turn)) for turn in rollout.turns]


def joint_texts(episode: Episode, decode: Decode) -> list[tuple[JointStep, str]]:
    """Each joint step with the text that is new since the one before: what was said in that step,
    the world's own state where it was noted, and what agents read before anybody speaks again.

    All texts up to a step's, joined, are the joint state it starts from. Nothing said in a step is
    part of its own state, nor is a prompt written after something was said in it, so that a value
    of the state does not depend on the actions it is the baseline of.
    """
    story = _Story(decode)
    found: list[tuple[JointStep, str]] = []
    said = ""
    for step in joint_steps(episode):
        index = step.turns[0].step
        state = episode.states[index] if index < len(episode.states) else None
        now = f"state: {state}\n" if state else ""
        now += "".join(story.read(turn) for turn in step.turns if turn.opening)
        found.append((step, said + now))
        said = "".join(
            ("" if turn.opening else story.read(turn)) + story.say(turn) for turn in step.turns
        )
    return found


@dataclass(slots=True)
class _Story:
    """What has been told of each agent's conversation: agent -> its ids."""

    decode: Decode
    known: dict[str, list[int]] = field(default_factory=dict)

    def read(self, turn: Turn) -> str:
        """What is new in the turn's prompt; all of it where it does not continue the last."""
        if turn.read:
            return f"{turn.agent} reads: {turn.read}\n"
        known, ids = self.known.get(turn.agent, []), turn.prompt_ids
        if known[: len(ids)] == ids:
            return ""
        fresh = ids[len(known) :] if ids[: len(known)] == known else ids
        self.known[turn.agent] = list(ids)
        return f"{turn.agent} reads: {self.decode(turn, fresh)}\n"

    def say(self, turn: Turn) -> str:
        """What the turn adds to it."""
        self.known[turn.agent] = [*turn.prompt_ids, *turn.completion_ids]
        if not turn.completion_ids:  # behind an API
            return f"{turn.agent} says: {turn.message.content if turn.message else ''}\n"
        return f"{turn.agent} says: {self.decode(turn, turn.completion_ids)}\n"
