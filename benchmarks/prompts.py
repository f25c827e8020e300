"""The time of rendering and tokenising the prompts of a conversation, turn by turn. It uses names
only that earlier revisions have too, so that `--against` can measure those."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from transformers import AutoTokenizer

from benchmarks.rows import Bench, Result
from mrlm import default_model
from mrlm.core.chat import Chat
from mrlm.core.types import Message, Role, Turn

FEW = 8
TEXT = "The next move is to the left, then up, and to the left again. "


def stages(root: Path, quick: bool = False, models: Path | None = None) -> dict[str, float]:
    """Number of turns -> seconds of processor time of a prompt at the end of a conversation of so
    many.

    Args:
        root, models: unused; the library of the process is measured.
        quick: a few conversations only.
    """
    tokenizer = AutoTokenizer.from_pretrained(default_model())
    return {
        f"{turns} turns": statistics.median(
            [last(Chat(tokenizer), _seconds, turns) for _ in range(2 if quick else many)]
        )
        for turns, many in ((FEW, 300), (64, 30))
    }


def _seconds(job: Callable[[], object]) -> float:
    begin = time.process_time()
    job()
    return time.process_time() - begin


def growth(turns: int) -> Callable[[Bench], Result]:
    """Milliseconds of a prompt at the end of so many turns, over those at the end of 8."""

    def measure(bench: Bench) -> Result:
        clock = bench.clock()
        tokenizer = AutoTokenizer.from_pretrained(default_model())
        sides: list[list[float]] = []
        with clock.applied():
            for number in (FEW, turns):
                chats = [Chat(tokenizer) for _ in range(bench.rounds)]
                sides.append([last(chat, clock.time, number) for chat in chats])
        result = Result(threads=clock.threads, clock=clock.name, rounds=bench.rounds)
        result.peer, result.ours = map(statistics.median, sides)
        result.value = result.ours / result.peer
        result.note = f"{1000 * result.ours:.2f} ms at {turns} turns"
        return result

    return measure


def last(chat: Chat, time: Callable[[Callable[[], object]], float], turns: int) -> float:
    """Seconds a turn for the last four turns of a conversation."""
    messages, seconds = [Message(TEXT * 4, Role.SYSTEM), Message(TEXT)], []
    prompt = chat.prompt(messages)
    for number in range(turns):
        ids = [*chat.encode(f"{number}. {TEXT}"), chat.tokenizer.eos_token_id]
        turn = Turn("a", "p", prompt.ids, ids, finish_reason="stop")
        turn.message = Message(chat.decode(ids), Role.ASSISTANT, turn=turn)
        messages = [*messages, turn.message, Message(f"{number}: {TEXT}")]
        before, made = prompt, []
        seconds.append(
            time(lambda: made.append(chat.prompt(messages, after=(before, turn))))  # noqa: B023
        )
        prompt = made[0]
    return statistics.fmean(seconds[-4:])
