"""A run as a stream of pieces for the page: what is there first, then what is written. Every piece
comes with a position, from which another stream continues."""

import json
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrlm.record.files import Part, episode_file, lines_of
from mrlm.record.reader import METRICS
from mrlm.tracking.metric_table import described
from mrlm.viewer.choice import every_nth
from mrlm.viewer.export import CHUNK, columns_of
from mrlm.viewer.folders import stages_of
from mrlm.viewer.growing import GrowingLines, GrowingParts, Position, RewrittenError
from mrlm.viewer.listing import EpisodeList
from mrlm.viewer.source import ALARMS, CONFIG, PROFILE, RATINGS, ViewedStage

LISTED = 256 * 1000**2
"""Bytes of a file of episodes that are listed when a page opens; with twice as many
the page starts again."""
PIECE = 1 << 20
"""Bytes of a file of episodes that a piece has at most, if it has several parts."""

Piece = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Thinning:
    """The parts of a large file that a page lists: all from the offset `since` on; of earlier
    training steps and evaluations every n-th."""

    since: int = 0
    training: int = 1
    evaluations: int = 1

    def of(self, parts: Sequence[Part], seen: list[int] | None = None) -> list[Part]:
        """Those that are listed of some parts, from the first one of a file, or later ones: `seen`
        are the numbers of training steps and of evaluations before these, which are counted on."""
        seen, listed = [0, 0] if seen is None else seen, []
        for part in parts:
            every = self.evaluations if part.evaluation else self.training
            if part.at >= self.since or seen[part.evaluation] % every == 0:
                listed.append(part)
            seen[part.evaluation] += 1
        return listed

    def sentence(self, parts: Sequence[Part]) -> str:
        """The rule, for readers of the page; empty if everything is listed."""
        if self.training == self.evaluations == 1:
            return ""
        first = bisect_left(parts, self.since, key=lambda part: part.at)
        has_newest = first < len(parts)
        newest = f"everything from step {parts[first].step} on; before it " if has_newest else ""
        tests = every_nth(self.evaluations, "evaluation")
        return f"{newest}{tests} and {every_nth(self.training, 'training step')}"


def thinning(parts: Sequence[Part], limit: int) -> Thinning:
    """Chooses what is listed of all parts of a file: all if their sizes are within the limit, in
    bytes; else the newest that take half of it, and every n-th of the others, evaluations rather
    than training steps."""
    if _size(parts) <= limit:
        return Thinning()
    since, left = parts[-1].end, limit // 2
    for part in reversed(parts):
        left -= part.size
        if left < 0:
            break
        since = part.at
    since = min(since, parts[-1].at)
    older = [part for part in parts if part.at < since]
    training = evaluations = 1
    while training <= len(older):
        if _size(Thinning(since, training, evaluations).of(older)) <= limit // 2:
            break
        training *= 2
        tests = _size(part for part in older if part.evaluation) / evaluations
        evaluations *= 2 if tests > limit // 4 else 1
    return Thinning(since, training, evaluations)


def _size(parts: Iterable[Part]) -> int:
    return sum(part.size for part in parts)


class _TooManyError(Exception):
    """The list has become too large; the page starts again with a part of it."""


class StageFollower:
    """Follows the files of a stage, from the position of an earlier stream (`state`), and lists at
    most `limit` bytes of episodes."""

    def __init__(self, stage: ViewedStage, state: dict[str, Any], limit: int) -> None:
        self.stage: ViewedStage = stage
        self.limit: int = limit
        self.parts: GrowingParts = GrowingParts(stage.folder, Position(*state.get("episodes", ())))
        self._begin(state)

    def _begin(self, state: dict[str, Any]) -> None:
        stage = self.stage
        lines = {"metrics": METRICS, "alarms": ALARMS}
        self.lines: dict[str, GrowingLines] = {
            name: GrowingLines(stage.folder / file, Position(*state.get(name, ())))
            for name, file in lines.items()
        }
        self.rule: Thinning | None = Thinning(*state["rule"]) if "rule" in state else None
        self._listed: int = state.get("listed", 0)
        """Offset up to which parts were listed or left out."""
        self._waiting: deque[Part] = deque()
        self._seen = [0, 0]
        self._size = 0
        self._about: dict[str, Any] | None = None
        self._times: list[int] = []
        self._described: set[str] = set()
        self._profiled = 0

    def again(self) -> None:
        """Starts with the first piece again, with fewer episodes if there are too many by now."""
        self._begin({})
        if self.parts.known:
            self.rule = thinning(self.parts.known, self.limit)

    def record(self) -> dict[str, Any]:
        """The position as JSON."""
        contents: dict[str, Any] = {
            name: follower.position.record() for name, follower in self.lines.items()
        }
        if self.rule is not None:
            rule = [self.rule.since, self.rule.training, self.rule.evaluations]
            at = min(self._listed, self.parts.position.at)
            mark = Position()
            path = episode_file(self.stage.folder)
            if path is not None and at:
                mark.move(path, at)
            contents |= {"episodes": mark.record(), "rule": rule, "listed": self._listed}
        return contents

    def about(self) -> dict[str, Any] | None:
        """Name, settings and checkpoints of the stage; `None` if they are as before."""
        files = [self.stage.folder / name for name in (CONFIG, RATINGS)]
        times = [file.stat().st_mtime_ns if file.is_file() else 0 for file in files]
        saved = checkpoints_of(self.stage.folder)
        profile = self.stage.folder / PROFILE
        size = profile.stat().st_size if profile.is_file() else 0
        # phases are sent whole: each time the file has grown by a tenth, not at every step
        previous = self._about
        grown = previous is None or size > 1.1 * self._profiled or size < self._profiled
        if previous and not grown and (times, saved) == (self._times, previous["saved"]):
            return None
        self._times = times
        self._about = self.stage.about() | {"saved": saved}
        if not grown:
            return self._about
        self._profiled = size
        return self._about | {"phases": self.stage.phases}

    def rows(self) -> Iterator[Piece]:
        """New metrics and alarms."""
        for name, lines in self.lines.items():
            rows = lines.read()
            if rows and name == "metrics":
                columns = columns_of(rows)
                new = [metric for metric, _ in columns if metric not in self._described]
                self._described.update(new)
                about = described(new)
                yield {"metrics": columns, "about": list(about.items())}
            elif rows:
                yield {name: rows}

    def episodes(self) -> Iterator[Piece]:
        """New episodes of the list, some parts at a time."""
        self.parts.read()
        path, parts = episode_file(self.stage.folder), self.parts.known
        if path is None or not parts or parts[-1].end == self._listed:
            return
        if self.rule is None:
            self.rule = thinning(parts, self.limit)
        chosen = self.rule.of(parts[sum(self._seen) :], self._seen)
        self._size += _size(chosen)
        if self._size > 2 * self.limit:
            fewer = thinning(parts, self.limit).of(parts)
            if 2 * _size(fewer) < self._size:
                raise _TooManyError
        waiting = self._waiting
        waiting += [part for part in chosen if part.at >= self._listed]
        self._listed = self._listed if waiting else parts[-1].end
        while waiting:
            size, some = 0, []
            while waiting and (not some or size + waiting[0].size <= PIECE):
                size += waiting[0].size
                some.append(waiting.popleft())
            self._listed = some[-1].end if waiting else parts[-1].end
            yield self._piece(path, some) | {"filling": bool(waiting)}

    def _piece(self, path: Path, parts: Sequence[Part]) -> Piece:
        listing, chunks = EpisodeList(), []
        for part in parts:
            first = size = 0
            lines = lines_of(path, part.at, part.size)
            for number, line in enumerate(lines):
                listing.add(self.stage.name, json.loads(line))
                size += len(line)
                if size >= CHUNK or number == len(lines) - 1:
                    location = {"stage": self.stage.name, "at": part.at, "size": part.size}
                    chunks.append((number + 1 - first, location | {"first": first}))
                    first, size = number + 1, 0
        return {"list": listing.record(), "chunks": chunks, "shortened": listing.shortened}


def checkpoints_of(folder: Path) -> list[str]:
    """Names of the whole checkpoints of a stage, the newest first, after `final`."""
    names = [path.parent.name for path in folder.glob("checkpoint-*/manifest.json")]
    numbered = [name for name in names if name.rpartition("-")[2].isdecimal()]
    saved = sorted(numbered, key=lambda name: -int(name.rpartition("-")[2]))
    return ["final", *saved] if (folder / "final").is_dir() else saved


class RunFollower:
    """Follows a run.

    Args:
        root: the folder that everything has to be in.
        position: the position of an earlier stream; empty: from the beginning.
        limit: bytes of episodes that are listed.
    """

    def __init__(self, run: Path, root: Path, position: str = "", limit: int = LISTED) -> None:
        self.run: Path = run
        self.root: Path = root
        self.limit: int = limit
        self._known: dict[str, dict[str, Any]] = _position(position)
        self._stages: dict[str, StageFollower] = {}
        self._begun = False

    def position(self) -> str:
        """The position after the last piece, for another stream."""
        return json.dumps({name: follower.record() for name, follower in self._stages.items()})

    def pieces(self) -> Iterator[tuple[str, Piece]]:
        """The new pieces, each with its name: `piece`, or `reset` where the page has to forget
        the others."""
        try:
            yield from self._pieces()
        except _TooManyError:
            self._begun = False
            for stage in self._stages.values():
                stage.again()
            yield "reset", {}
        except (RewrittenError, FileNotFoundError):
            begun = self._begun or bool(self._stages)
            self._known, self._stages, self._begun = {}, {}, False
            if begun:
                yield "reset", {}

    def _pieces(self) -> Iterator[tuple[str, Piece]]:
        for stage in stages_of(self.run, self.root):
            if stage.name not in self._stages:
                state = self._known.pop(stage.name, {})
                self._stages[stage.name] = StageFollower(stage, state, self.limit)
        first, self._begun = not self._begun, True
        for name, stage in self._stages.items():
            about = stage.about()
            if about is not None:
                yield "piece", {"stages": [about]}
            for piece in stage.rows():
                yield "piece", {"stages": [{"name": name, **piece}]}
        if first:
            yield "piece", {"meta": self._meta(filling=True)}
        for name, stage in self._stages.items():
            for piece in stage.episodes():
                filling, shortened = piece.pop("filling"), piece.pop("shortened")
                filling |= name != list(self._stages)[-1] or self.waiting
                marks = {"shortened": True} if shortened else {}
                yield "piece", piece | {"meta": self._meta(filling=filling) | marks}
        if first:
            yield "piece", {"meta": self._meta(filling=self.waiting)}

    @property
    def waiting(self) -> bool:
        """Whether more can be read at once."""
        stages = self._stages.values()
        return any(file.more for stage in stages for file in (stage.parts, *stage.lines.values()))

    def _meta(self, *, filling: bool) -> dict[str, Any]:
        rules = {
            name: follower.rule.sentence(follower.parts.known)
            for name, follower in self._stages.items()
            if follower.rule is not None
        }
        several = len(self._stages) > 1
        texts = [f"{name}: {text}" if several else text for name, text in rules.items() if text]
        return {
            "title": self.run.resolve().name,
            "total": sum(follower.parts.episodes for follower in self._stages.values()),
            "choice": "; ".join(texts),
            "filling": filling,
        }


def _position(text: str) -> dict[str, dict[str, Any]]:
    """A position as the page sends it; one that cannot be read is that of the beginning."""
    try:
        positions = json.loads(text)
    except ValueError:
        return {}
    return positions if isinstance(positions, dict) else {}
