"""Joint steps of an episode, and the joint state before each of them as text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mrlm.core.episodes import Episode
from mrlm.core.types import Rollout, Turn

Decode = Callable[[Turn, Sequence[int]], str]
"""`decode(turn, ids)`: decodes ids of a turn with the tokenizer of its policy."""


@dataclass(slots=True)
class JointStep:
    """A step of the environment with a turn: the turns of all agents, frozen policies included, by
    agent; the team reward up to the next such step; and the discount of later rewards."""

    turns: list[Turn]
    reward: float = 0.0
    discount: float = 1.0

    @property
    def trained(self) -> list[Turn]:
        """The turns whose tokens are trained."""
        return [turn for turn in self.turns if turn.trained and turn.completion_ids]


def joint_steps(episode: Episode, gamma: float = 1.0) -> list[JointStep]:
    """The joint steps of an episode in order. Without `step_rewards` its reward belongs to the
    first one; a step without a turn (a scripted move) is merged into the one before it, with
    `gamma` as the discount per environment step."""
    rewards = episode.step_rewards or [episode.reward]
    steps: dict[int, JointStep] = {}
    for turn in sorted(episode.turns, key=lambda turn: (turn.step, turn.agent, turn.index)):
        steps.setdefault(turn.step, JointStep([])).turns.append(turn)
    ends = [*list(steps)[1:], len(rewards)] if steps else []
    for (start, step), end in zip(steps.items(), ends, strict=True):
        step.reward = sum(gamma**i * reward for i, reward in enumerate(rewards[start:end]))
        step.discount = gamma ** max(end - start, 1)
    return list(steps.values())


def chain(episode: Episode) -> Rollout:
    """All agents' turns as one rollout: consecutive decisions by joint step, in the order of their
    requests (by name for simultaneous ones)."""
    turns = sorted(episode.turns, key=lambda turn: (turn.step, turn.order, turn.agent, turn.index))
    return Rollout(task_id=episode.task.id, turns=turns)


def in_rounds(steps: Sequence[JointStep]) -> list[list[JointStep]]:
    """Joint steps in rounds: a round ends before an agent has its second turn. With simultaneous
    moves each step is a round; with alternating moves a round is one turn of each agent."""
    rounds: list[list[JointStep]] = []
    spoke: set[str] = set()
    for step in steps:
        agents = {turn.agent for turn in step.turns}
        if not rounds or spoke & agents:
            rounds.append([])
            spoke = set()
        rounds[-1].append(step)
        spoke |= agents
    return rounds


def as_one(steps: Sequence[JointStep]) -> JointStep:
    """Merges consecutive joint steps into one."""
    whole = JointStep([])
    for step in steps:
        whole.turns = [*whole.turns, *step.turns]
        whole.reward += whole.discount * step.reward
        whole.discount *= step.discount
    return whole


def own_texts(rollout: Rollout, decode: Decode) -> list[tuple[Turn, str, str]]:
    """Each turn of an agent with the text read since its last one, and its completion's."""
    story = _Story(decode)
    return [(turn, story.read(turn), story.say(turn)) for turn in rollout.turns]


def joint_texts(episode: Episode, decode: Decode) -> list[tuple[JointStep, str]]:
    """Each joint step with the new text since the one before: the messages of that step, the
    environment's state if recorded, and the observations before the next turn.

    The concatenated texts up to a step are its joint state. Messages of a step, and prompts written
    after them, are not part of the step's own state, so that its value does not depend on the
    actions it is the baseline of.
    """
    story = _Story(decode)
    texts: list[tuple[JointStep, str]] = []
    messages = ""
    for step in joint_steps(episode):
        index = step.turns[0].step
        state = episode.states[index] if index < len(episode.states) else None
        now = f"state: {state}\n" if state else ""
        now += "".join(story.read(turn) for turn in step.turns if turn.opening)
        texts.append((step, messages + now))
        messages = "".join(
            ("" if turn.opening else story.read(turn)) + story.say(turn) for turn in step.turns
        )
    return texts


@dataclass(slots=True)
class _Story:
    """Tracks the ids of each agent's conversation that are already in the text: agent -> ids."""

    decode: Decode
    known: dict[str, list[int]] = field(default_factory=dict)

    def read(self, turn: Turn) -> str:
        """The new part of the turn's prompt; all of it if it does not extend the last one."""
        if turn.read:
            return f"{turn.agent} reads: {turn.read}\n"
        history, ids = self.known.get(turn.agent, []), turn.prompt_ids
        if history[: len(ids)] == ids:
            return ""
        fresh = ids[len(history) :] if ids[: len(history)] == history else ids
        self.known[turn.agent] = list(ids)
        return f"{turn.agent} reads: {self.decode(turn, fresh)}\n"

    def say(self, turn: Turn) -> str:
        self.known[turn.agent] = [*turn.prompt_ids, *turn.completion_ids]
        if not turn.completion_ids:  # API model without ids
            return f"{turn.agent} says: {turn.message.content if turn.message else ''}\n"
        return f"{turn.agent} says: {self.decode(turn, turn.completion_ids)}\n"
