"""Conversion of conversations that no engine sampled (rows of a data set, rollouts built by hand)
to turns for training."""

from collections.abc import Collection, Sequence

from mrlm.core.chat import Chat
from mrlm.core.spans import samples
from mrlm.core.types import Message, Role, Turn


def transcript_turns(
    chat: Chat,
    messages: Sequence[Message],
    agent: str,
    policy: str,
    agents: Collection[str] | None = None,
) -> list[Turn]:
    """One turn per assistant message; everything before it is its prompt.

    Args:
        chat: renderer for the policy's tokenizer.
        messages: the whole conversation.
        agent: agent of messages without one.
        policy: the policy to be trained.
        agents: agents whose messages are trained on; all when `None`.

    Returns:
        Turns without log-probs, in order; empty without an assistant message of a selected agent.
        The joint steps count the messages of all agents, selected or not.
    """

    def wanted(index: int) -> bool:
        message = messages[index]
        trained = message.role is Role.ASSISTANT and message.weight != 0
        return trained and (agents is None or (message.agent or agent) in agents)

    if not any(wanted(index) for index in range(len(messages))):
        return []
    written = [
        position
        for position, message in enumerate(messages)
        if message.role is Role.ASSISTANT or message.agent is not None
    ]
    turns = []
    counts: dict[str, int] = {}
    for sample in samples(chat, messages, wanted):
        message = messages[sample.message]
        speaker = message.agent or agent
        counts[speaker] = index = counts.get(speaker, -1) + 1
        turns.append(
            Turn(
                agent=speaker,
                policy=policy,
                prompt_ids=sample.prompt,
                completion_ids=sample.completion,
                message=message,
                step=written.index(sample.message),
                index=index,
            )
        )
    return turns
