"""Prompts of debaters, and speeches of the expert."""

from mrlm.core.content import content
from mrlm.environments.debate.judging import Speech
from mrlm.environments.debate.topics import Side, Topic
from mrlm.environments.shared.games import Style

FRAMES: list[list[str]] = content(__file__)["frames"]
"""One speech per row: sentence templates for a key point and its grounds."""


def opening(topic: Topic, side: Side, rounds: int, style: Style) -> str:
    """The first message a debater sees."""
    if style == "short":
        return f"{side} {topic.claim}?"
    lines = [f"The debate is about: {topic.claim}"]
    if topic.answer is not None:
        lines.append(
            "You propose an answer and defend it."
            if side == "pro"
            else "You check the other side's answer and say what is wrong with it."
        )
    else:
        stands = "for" if side == "pro" else "against"
        lines.append(f"You are {side.upper()}: you speak {stands} it.")
    if topic.known:
        answer_format = "true or Answer: false" if topic.truth is not None else "<your answer>"
        lines.append(
            f"End each speech with what you believe yourself, on a line: Answer: {answer_format}"
        )
    lines.append(f"You have {rounds} speech{'es' if rounds > 1 else ''}. Give the first one now.")
    return "\n".join(lines)


def between(speech: Speech, side: Side, style: Style) -> str:
    """Another debater's speech as shown to a debater."""
    if style == "short":
        return f"{side}: {speech.text}"
    return f"{speech.debater} ({side.upper()}) said:\n{speech.text}"


def honest(topic: Topic, side: Side, turn: int, position: int, style: Style) -> str | None:
    """The expert's speech: the key points of its side, with their grounds, and the truth if it is
    known. `None` without key points or a known truth.

    Args:
        turn: number of its previous speeches.
        position: number of debaters of its side before it.
    """
    points = topic.points.get(side, ())
    if topic.known and style == "short":
        return topic.solution
    parts = []
    if points:
        frames = FRAMES[(turn + position) % len(FRAMES)]
        chosen = [points[(i + position) % len(points)] for i in range(len(frames))]
        parts = [frame.format(point) for frame, point in zip(frames, chosen, strict=True)]
    if topic.known:
        parts.append(f"\nAnswer: {topic.solution}")
    return " ".join(parts).strip() or None
