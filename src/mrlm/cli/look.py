"""`mrlm look`: recorded episodes on the terminal, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrlm.cli._options import refuse
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.core.progress import aligned

if TYPE_CHECKING:
    from mrlm.record.exports.transcripts import Entry
    from mrlm.record.reader import RecordedEpisode, RecordedRun, RecordedTurn

SHOWN = 20
"""Episodes that are shown if no number is given; as JSON all are."""
WIDTH = 60
"""Characters of a conversation in the table."""


def look(
    run: Path,
    where: str = "",
    step: str | None = None,
    sort: str = "step",
    limit: int | None = None,
    episode: str | None = None,
    tokens: str | None = None,
    as_json: bool = False,
) -> None:
    """Look at the recorded episodes of a run."""
    from mrlm.record.filters import check_names, parse_filter, step_range
    from mrlm.record.reader import read_run
    from mrlm.tracking.console import printable

    if tokens is not None and episode is None:
        raise ConfigError("--tokens shows the tokens of one episode; add --episode ID")
    if as_json:
        refuse("is for text; remove it, as --json has all columns", tokens=tokens)
    recorded = read_run(run)
    steps = None if step is None else step_range(step)
    stage = run.resolve().name
    accepts = parse_filter(where, stage)
    check_names(where, recorded.rows(), [stage])
    rows = [row for row in recorded.rows(steps, episode) if accepts(row)]
    if not rows:
        raise ConfigError(_nothing(recorded, episode))
    rows = _sorted(rows, sort)
    if limit is None:
        limit = len(rows) if as_json else SHOWN
    if as_json:
        for row in rows[:limit]:
            print(json.dumps(row))
    elif episode is None:
        print(printable(_table(rows, limit)))
    else:
        from mrlm.record.reader import RecordedEpisode

        episodes = [RecordedEpisode(row) for row in rows[:limit]]
        columns = {name for played in episodes for turn in played.turns for name in turn.columns}
        if tokens is not None and columns and tokens not in columns:
            raise ConfigError(registry.unknown(tokens, sorted(columns), "--tokens"))
        for played in episodes:
            print(printable(_episode(recorded, played, tokens)))


def _nothing(recorded: RecordedRun, episode: str | None) -> str:
    from mrlm.tracking.log_file import ended_in

    if not recorded.parts:
        why = ended_in(recorded.folder) or "record.keep left them out"
        return f"{recorded.folder}: no episodes are recorded: {why}"
    steps = f"steps {recorded.steps[0]} to {recorded.steps[-1]}"
    some = next(recorded.rows())["id"]
    what = "no episode fits the filter" if episode is None else f"no episode {episode!r}"
    return f"{recorded.folder}: {what}; {steps} are recorded, ids look like {some!r}"


def _sorted(rows: Sequence[Mapping[str, Any]], key: str) -> list[Mapping[str, Any]]:
    """Rows by a number; those without it come last."""
    from mrlm.record.filters import number, numbers_of

    name, sign = key.lstrip("-"), -1 if key.startswith("-") else 1
    columns = {column for row in rows for column in numbers_of(row)}
    if name not in columns:
        raise ConfigError(registry.unknown(name, sorted(columns), f"--sort {key}"))
    numbered = [(number(row, name), row) for row in rows]
    numbered.sort(key=lambda pair: (pair[0] is None, sign * (pair[0] or 0.0)))
    return [row for _, row in numbered]


def _table(rows: Sequence[Mapping[str, Any]], limit: int) -> str:
    """One line per episode."""
    from mrlm.record.filters import turns_of

    names = list(dict.fromkeys(name for row in rows for name in row["agents"]))
    lines = [["step", "episode", "reward", *names, "tokens", "last message"]]
    for row in rows[:limit]:
        agents, tokens = row["agents"], sum(turn.get("tokens", 0) for turn in turns_of(row))
        reward = "failed" if row["status"] == "error" else _number(row["reward"])
        own = (_number(agents[name]["reward"]) if name in agents else "" for name in names)
        lines.append([str(row["step"]), row["id"], reward, *own, str(tokens), _last(row)[:WIDTH]])
    more = len(rows) - limit
    return aligned(lines) + (f"\n... and {more} more (--limit N shows more)" if more > 0 else "")


def _last(row: Mapping[str, Any]) -> str:
    """The last message of an episode, in one line."""
    if row["status"] == "error":
        return " ".join(str(row["error"]).split())
    messages = [agent["messages"][-1] for agent in row["agents"].values() if agent["messages"]]
    return " ".join(str(messages[-1]["content"]).split()) if messages else ""


def _episode(recorded: RecordedRun, episode: RecordedEpisode, column: str | None) -> str:
    """The messages of an episode in the order in which they were written."""
    from mrlm.record.exports.transcripts import transcript

    row = episode.row
    where = f"{row['environment']}, " if row["environment"] else ""
    lines = [
        f"{episode.id}, step {episode.step}, {where}task {row['task_id']}: "
        f"{row['status']}, reward {_number(episode.reward)}"
    ]
    boards, several = list(row.get("boards", ())), len(row["agents"]) > 1
    for entry in transcript(episode):
        turn = entry.turn
        if turn is None:
            reader = f"to {entry.agent}" if several else ""
            words = filter(None, [str(entry.role), entry.sender, reader])
            lines += [f"  {' '.join(words)}: {entry.text}", *_calls(entry)]
            continue
        lines += [*_boards(boards, turn.row.get("step", 0)), "", _heading(turn)]
        if turn.row.get("why"):
            lines.append(f"  advantage: {turn.row['why']}")
        lines += [f"  {turn.text}", *_calls(entry)]
        if column is not None:
            lines += _tokens(recorded, turn, column)
    lines += _boards(boards)
    if row.get("error"):
        lines += ["", str(row["error"])]
    return "\n".join(lines)


def _calls(entry: Entry) -> list[str]:
    """The tool calls of a message."""
    return [f"  calls {call.name}({json.dumps(call.arguments)})" for call in entry.calls]


def _boards(boards: list[Mapping[str, Any]], step: int | None = None) -> list[str]:
    """The boards up to a joint step (all, if it is `None`), which are removed from the list."""
    from mrlm.core.board import as_text

    lines = []
    while boards and (step is None or boards[0]["step"] <= step):
        board = boards.pop(0)
        drawn = as_text(board.get("tree") or board.get("text", ""))
        steps = board["step"]
        title = f"board after {steps} joint step{'' if steps == 1 else 's'}:" if steps else "board:"
        lines += ["", title, *(f"  {line}" for line in drawn.splitlines())]
    return lines


def _heading(turn: RecordedTurn) -> str:
    row = turn.row
    parts = [f"reward {_number(row.get('reward'))}"]
    parts += [f"{name} {_number(value)}" for name, value in row.get("components", {}).items()]
    if row.get("advantage") is not None:
        parts.append(f"advantage {row['advantage']:+.3g}")
    if row.get("finish_reason") == "length":
        parts.append("cut")
    if not turn.trained:
        parts.append("not trained")
    where = f"joint step {row.get('step', 0)}, weights {row.get('version', 0)}"
    return f"{turn.agent} ({turn.policy}), {where}: {', '.join(parts)}"


def _tokens(recorded: RecordedRun, turn: RecordedTurn, column: str) -> Iterable[str]:
    """The tokens of a turn with the numbers of a column."""
    if turn.ids is None:
        return ["    (tokens are not recorded; record.tokens: all)"]
    if column not in turn.columns:
        column_names = ", ".join(sorted(turn.columns))
        return [f"    (no column {column!r}; there are {column_names})"]
    pieces, ids = recorded.vocabulary.get(turn.policy, []), turn.ids.tolist()
    texts = [pieces[i].decode(errors="replace") if i < len(pieces) else str(i) for i in ids]
    numbers = turn.columns[column].tolist()
    return [f"    {value:+9.3f}  {text!r}" for text, value in zip(texts, numbers, strict=True)]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
