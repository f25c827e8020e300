"""Branches that the page requests, `play from here`: one at a time, each in a process of its own,
so that the server stays responsive and the memory of the models is freed."""

import json
import multiprocessing
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MOST = 64
"""Branches of one request."""
LONGEST = 200_000
"""Characters of an edited message."""
BEAT = 5.0
"""Seconds between the signs of life that a waiting page receives."""


PlayFunction = Callable[..., Sequence[Any]]
"""`play(run, episode, **request)` of a run folder, an episode's id and the fields of `checked`
returns branches, whose `row` is as in `docs/record.md`; a function of a module, since it is called
in another process."""


class PlayError(Exception):
    """A request that is not played; the text says why."""


class Player:
    """Plays what pages request, by a function that has to be importable by its name."""

    def __init__(self, play: PlayFunction) -> None:
        self._play = play
        self._free = threading.Lock()

    def branches(
        self, run: Path, request: Mapping[str, Any], beat: Callable[[], None]
    ) -> list[dict[str, Any]]:
        """Plays branches of a request, as `checked` returns it, and returns their rows. The process
        ends with the request: an exception of `beat`, which is called every few seconds, of a page
        that was left, ends both. Raises `PlayError`: another request is being played, or this one
        failed."""
        if not self._free.acquire(blocking=False):
            raise PlayError("another episode is being played; try again when it is done")
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(self._play, run, dict(request), theirs))
        try:
            worker.start()
            theirs.close()
            while not ours.poll(BEAT):
                beat()
            answer = json.loads(ours.recv_bytes())
        except EOFError:
            worker.join()
            raise PlayError(f"the process that played it ended ({worker.exitcode})") from None
        finally:
            if worker.is_alive():
                worker.terminate()
            worker.join()
            ours.close()
            self._free.release()
        if "error" in answer:
            raise PlayError(answer["error"])
        return answer["rows"]


def _work(play: PlayFunction, run: Path, request: dict[str, Any], answer: Connection) -> None:
    """Plays in a process of its own."""
    from mrlm.core.user_errors import explain

    try:
        branches = play(run, request.pop("id"), **request)
        text = json.dumps({"rows": [dict(branch.row) for branch in branches]}, allow_nan=False)
    except Exception as error:  # of the run's own code: the page shows it
        text = json.dumps({"error": explain(error)})
    answer.send_bytes(text.encode())


def checked(request: Any, saved: Sequence[str]) -> dict[str, Any]:
    """The fields of a request of a page, without its stage: `id`, `agent`, `turn`, and optionally
    `step`, `n`, `greedy`, `weights` (one of the checkpoints `saved`) and `message`. Raises
    `PlayError`: a field is missing, unknown or wrong."""
    if not isinstance(request, dict):
        raise PlayError("the request is not an object")
    fields = {"step": None, "n": 1, "greedy": False, "weights": None, "message": None} | request
    number, message = fields["n"], fields["message"]
    rules = {
        "id": isinstance(fields.get("id"), str),
        "agent": isinstance(fields.get("agent"), str),
        "turn": _whole(fields.get("turn")),
        "step": fields["step"] is None or _whole(fields["step"]),
        "n": _whole(number) and 1 <= number <= MOST,
        "greedy": isinstance(fields["greedy"], bool),
        "weights": fields["weights"] is None or fields["weights"] in saved,
        "message": message is None or (isinstance(message, str) and len(message) <= LONGEST),
    }
    wrong = [name for name, right in rules.items() if not right] + sorted(fields.keys() - rules)
    if wrong:
        raise PlayError(f"the request is wrong in: {', '.join(wrong)}")
    return fields


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
