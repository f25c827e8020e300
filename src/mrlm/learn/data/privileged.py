"""Prompts of a teacher that reads more than the policy it scores: the same conversation, with
messages before turns of the policy that it never sees."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from mrlm.core.chat import Chat
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Role, Rollout, Turn

Privilege = Literal["answer", "partners", "feedback"]
"""`answer`: the right answer of the task. `partners`: the messages of other agents, each before the
next turn. `feedback`: what the environment shows after the first turn, and the agent's reward."""


def reveal(
    groups: Sequence[Group], policy: str, chat: Chat, kinds: Sequence[str], limit: int
) -> None:
    """Writes the teacher's prompts (`teacher_ids`) on the turns of a policy, unless they are equal
    to the policy's own.

    Args:
        groups: episodes, finished.
        policy: its name.
        chat: the renderer of its conversations.
        kinds: of `Privilege`.
        limit: number of tokens of a prompt and its completion together.

    Raises:
        ConfigError: a task has no answer, a conversation is not known, or a prompt is too long.
    """
    for episode in (episode for group in groups for episode in group if not episode.failed):
        for rollout in episode.rollouts.values():
            if any(turn.policy == policy and turn.trained for turn in rollout.turns):
                _reveal(episode, rollout, chat, kinds, limit)


def _reveal(
    episode: Episode, rollout: Rollout, chat: Chat, kinds: Sequence[str], limit: int
) -> None:
    messages, start = rollout.messages, 0
    before, talk, heard = None, list[Message](), list[Turn]()
    for turn in rollout.turns:
        place = _place(messages, turn, episode)
        talk += messages[start:place]
        for kind in kinds:
            if kind == "partners":
                talk += _of_partners(episode, turn, heard)
            elif before is None:
                talk += _notes(kind, episode, rollout, place)
        prompt, start = chat.prompt(talk, before), place
        before = prompt, replace(turn, prompt_ids=prompt.ids)
        turn.teacher_ids = None if prompt.ids == turn.prompt_ids else prompt.ids
        if len(prompt.ids) + len(turn) > limit:
            raise ConfigError(
                f"distill.privileged: with {', '.join(kinds)}, the teacher's prompt of episode "
                f"{episode.id!r} has {len(prompt.ids)} tokens, and the model has {limit} positions "
                "for it and the completion; set generation.max_prompt_tokens, or reveal less"
            )


def _of_partners(episode: Episode, turn: Turn, heard: list[Turn]) -> list[Message]:
    """The messages of other agents up to a turn that were not `heard` before, in order."""
    others = (x for x in episode.turns if x.agent != turn.agent and x.message is not None)
    now = (turn.step, turn.order)
    fresh = [x for x in others if (x.step, x.order) <= now and not any(x is y for y in heard)]
    heard += fresh
    fresh.sort(key=lambda x: (x.step, x.order))
    return [Message(f"{x.agent}: {x.message.content}") for x in fresh if x.message]


def _place(messages: Sequence[Message], turn: Turn, episode: Episode) -> int:
    """Index of the message of a turn in its rollout."""
    for index, message in enumerate(messages):
        of = message.turn  # copies of a turn share its ids
        if of is not None and of.completion_ids is turn.completion_ids:
            return index
        if message is turn.message:
            return index
    raise ConfigError(
        f"distill.privileged: the conversation of agent {turn.agent!r} in episode {episode.id!r} "
        "was begun again, so that what it read in an earlier turn is not known; remove the setting"
    )


def _notes(kind: str, episode: Episode, rollout: Rollout, first: int) -> list[Message]:
    """Messages that only the teacher reads, as those of a user."""
    if kind == "answer":
        answer = episode.task.answer
        if answer is None:
            raise ConfigError(
                f"distill.privileged: task {episode.task.id!r} has no answer to reveal; use tasks "
                "with one, or remove 'answer'"
            )
        return [Message(f"The right answer: {answer}")]
    shown = [m for m in rollout.messages[first + 1 :] if m.role is not Role.ASSISTANT]
    return [*shown, Message(f"Reward: {rollout.reward:g}")]
