"""One HTML file of one or several runs: it opens from disk, without a server or a network."""

import base64
import gzip
import hashlib
import html
import json
import math
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mrlm.core.errors import ConfigError
from mrlm.record.exports.files import new_file
from mrlm.record.filters import check_names, evaluation, parse_filter
from mrlm.tracking.metric_table import described
from mrlm.viewer.choice import Candidate, Choice, choose
from mrlm.viewer.listing import EpisodeList, group_key
from mrlm.viewer.source import ViewedStage, run_names, viewed_runs

STATIC = Path(__file__).parent / "static"
SOURCES = ("blocks.js", "served.js")
"""The modules by which a page gets its data: from itself, or from `mrlm view`."""
CHUNK = 1 << 19
"""Bytes of rows that the page unpacks at once."""
SAMPLED = 200
"""Rows by which the compression is estimated."""
FORMAT = 1
"""Version of the page's data."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Exported:
    """A written page.

    Args:
        shown: number of episodes in it.
        total: number of episodes of the run.
        size: its size in bytes.
        sentence: the rule by which episodes were chosen; empty if all are in it.
    """

    path: Path
    shown: int
    total: int
    size: int
    sentence: str


@dataclass(slots=True)
class _Contents:
    """The data of a page, compressed."""

    listing: EpisodeList = field(default_factory=EpisodeList)
    chunks: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    used: dict[str, set[int]] = field(default_factory=dict)
    """Vocabulary -> token ids that occur."""


def export_run(
    run: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    max_mb: float = 20.0,
    pieces: Mapping[str, Sequence[bytes]] | None = None,
    where: str = "",
) -> Exported:
    """Writes a run, or several to compare, as one HTML file.

    Args:
        run: a run folder, or that of a stage; or several.
        output: the file to write.
        max_mb: limit of its size, in MB; above it, episodes are chosen and the page states how.
        pieces: policy -> bytes of each token; default: as in the run folder.
        where: a filter of episodes, as of `mrlm look`.

    Raises:
        ConfigError: a folder is not a run folder or is given twice, no episode fits the filter, or
            the file cannot be written.
    """
    runs = [run] if isinstance(run, str | Path) else run
    folders, output = [Path(path).expanduser() for path in runs], Path(output).expanduser()
    title = ", ".join(run_names(folders))
    stages = viewed_runs(folders)
    check_names(where, (row for _, row in _rows(stages)), [stage.name for stage in stages])
    stages = [replace(stage, accepts=parse_filter(where, stage.name)) for stage in stages]
    candidates, ratio = _candidates(stages)
    if where and not candidates:
        raise ConfigError(f"{title}: no episode fits the filter {where!r}")
    limit, share = max_mb * 1e6, 1.0
    while True:
        chosen = choose(candidates, limit * share / ratio)
        text = _page(title, stages, chosen, len(candidates), pieces)
        if len(text) <= limit or share < 0.01 or not chosen.numbers:
            break
        share *= min(0.9, 0.95 * limit / len(text))
    with new_file(output) as file:
        file.write_text(text, encoding="utf-8")
    counts = len(chosen.numbers), len(candidates), output.stat().st_size
    return Exported(output, *counts, chosen.sentence)


def _candidates(stages: Sequence[ViewedStage]) -> tuple[list[Candidate], float]:
    """All episodes, and the size of a row in the page relative to its JSON."""
    candidates, sample = [], []
    cited = {
        (stage.name, evidence["id"], evidence["step"])
        for stage in stages
        for alarm in stage.alarms
        for evidence in alarm["evidence"]
    } | {(stage.name, *key) for stage in stages for key in stage.explained}
    for seen, (stage, row) in enumerate(_rows(stages)):
        text = json.dumps(row)
        if seen % max(1, seen // SAMPLED) == 0 and len(sample) < 10 * SAMPLED:
            sample.append(text)
        reward = row.get("reward")
        candidates.append(
            Candidate(
                seen,
                stage.name,
                row.get("step") or 0,
                group_key(stage.name, row),
                evaluation(row),
                reward if isinstance(reward, int | float) else -math.inf,
                len(text),
                (stage.name, *_key(row)) in cited,
            )
        )
    raw = "\n".join(sample).encode()
    ratio = 1.5 * len(_packed(raw)) / len(raw) if raw else 1.0  # the list repeats messages
    return candidates, ratio


def _rows(stages: Sequence[ViewedStage]) -> Iterator[tuple[ViewedStage, dict[str, Any]]]:
    for stage in stages:
        for row in stage.episodes():
            yield stage, row


def _contents(stages: Sequence[ViewedStage], chosen: Choice) -> _Contents:
    """The chosen rows in chunks, and their list."""
    made, lines, size = _Contents(), [], 0
    explained = {stage.name: stage.explained for stage in stages}
    for number, (stage, row) in enumerate(_rows(stages)):
        if number not in chosen.numbers:
            continue
        if not lines:
            made.starts.append(len(made.listing))
        made.listing.add(stage.name, row)
        _note_tokens(row, stage.run, made.used)
        more = {"run": stage.run, "explained": explained[stage.name].get(_key(row))}
        more = {name: value for name, value in more.items() if value}
        line = json.dumps(row | more, ensure_ascii=False)
        lines.append(line)
        size += len(line)
        if size >= CHUNK:
            made.chunks.append(_packed(_json_list(lines)))
            lines, size = [], 0
    if lines:
        made.chunks.append(_packed(_json_list(lines)))
    return made


def _key(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["id"], row.get("step") or 0


def _json_list(lines: Sequence[str]) -> bytes:
    return f"[{','.join(lines)}]".encode("utf-8", "surrogatepass")


def _vocabulary(run: str, policy: str) -> str:
    """Name of a policy's vocabulary; policies of different runs may have the same name."""
    return f"{run}\n{policy}" if run else policy


def _note_tokens(row: Mapping[str, Any], run: str, used: dict[str, set[int]]) -> None:
    """Adds the token ids of an episode to those that occur."""
    for agent in (row.get("agents") or {}).values():
        token_ids = used.setdefault(_vocabulary(run, str(agent.get("policy"))), set())
        for turn in agent.get("turns") or ():
            prompt = turn.get("prompt") or (0, None)
            for packed in (turn.get("ids"), prompt[1]):
                if isinstance(packed, str):
                    kind, _, data = packed.partition(":")
                    ids = np.frombuffer(base64.b64decode(data), f"<{kind}")
                    token_ids.update(np.unique(ids).tolist())


def _page(
    title: str,
    stages: Sequence[ViewedStage],
    chosen: Choice,
    total: int,
    pieces: Mapping[str, Sequence[bytes]] | None,
) -> str:
    made = _contents(stages, chosen)
    vocabularies = _vocabularies(stages, pieces or {})
    meta = {
        "format": FORMAT,
        "title": title,
        "shown": len(made.listing),
        "total": total,
        "choice": chosen.sentence,
        "shortened": made.listing.shortened,
        "starts": made.starts,
        "stages": [_stage(stage) for stage in stages],
        "pieces": _tables(vocabularies, made.used),
        "tokenizers": [
            (name, _digest(vocabularies[name])) for name in made.used if name in vocabularies
        ],
    }
    data = {"meta": _packed_json(meta), "list": _packed_json(made.listing.record())}
    data |= {f"chunk{number}": chunk for number, chunk in enumerate(made.chunks)}
    return _html(title, data)


def _stage(stage: ViewedStage) -> dict[str, Any]:
    """A stage's settings, its metrics by column, and the descriptions of these."""
    metrics = columns_of(stage.metrics)
    return stage.about() | {
        "metrics": metrics,
        "about": list(described([name for name, _ in metrics]).items()),
        "phases": stage.phases,
        "alarms": stage.alarms,
    }


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[float | None]]]:
    """Rows of metrics as columns."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [(name, [_number(row.get(name)) for row in rows]) for name in names]


def _number(value: Any) -> float | None:
    """A metric with seven digits, which is more than a chart shows."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value if isinstance(value, int) or abs(value) > 1e6 else float(f"{value:.7g}")


def _vocabularies(
    stages: Sequence[ViewedStage], pieces: Mapping[str, Sequence[bytes]]
) -> dict[str, Sequence[bytes]]:
    """Vocabulary -> bytes of each token."""
    return {
        _vocabulary(stage.run, policy): table
        for stage in stages
        for policy, table in {**stage.vocabulary, **pieces}.items()
    }


def _tables(
    vocabularies: Mapping[str, Sequence[bytes]], used: Mapping[str, set[int]]
) -> list[tuple[str, list[tuple[int, str]]]]:
    """Vocabulary -> texts of the tokens that occur, each byte as one character."""
    return [
        (name, [(i, table[i].decode("latin-1")) for i in sorted(ids) if i < len(table)])
        for name, ids in used.items()
        if ids and (table := vocabularies.get(name))
    ]


def _digest(pieces: Sequence[bytes]) -> str:
    """A digest by which the page knows that two policies have one vocabulary."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(len(piece).to_bytes(4, "little") + piece)
    return digest.hexdigest()[:16]


def _packed_json(value: Any) -> str:
    return _packed(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _packed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()


def _html(title: str, data: Mapping[str, str]) -> str:
    """The page. Every module is a `data:` address of the import map, since files that a page was
    not served with cannot be imported; a nonce admits only these scripts, and nothing is loaded."""
    nonce = secrets.token_urlsafe(18)
    modules = import_map("blocks.js", _address)
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; connect-src 'none'; "
        f"script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    style = (STATIC / "style.css").read_text(encoding="utf-8")
    head = [
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f'<style nonce="{nonce}">{style}</style>',
    ]
    blocks = [
        f'<script type="application/octet-stream" id="{name}">{block}</script>'
        for name, block in data.items()
    ]
    return shell(title, nonce, modules, head, "viewer/app.js", blocks)


def import_map(source: str, address: Callable[[Path], str]) -> dict[str, str]:
    """Module -> its address; `source` is the file by which the page gets its data."""
    shared = [path for path in sorted(STATIC.glob("*.js")) if path.name not in SOURCES]
    modules = {f"viewer/{path.name}": address(path) for path in shared}
    return modules | {"viewer/source.js": address(STATIC / source)}


def shell(
    title: str,
    nonce: str,
    modules: Mapping[str, str],
    head: Sequence[str],
    start: str,
    blocks: Sequence[str] = (),
) -> str:
    """The document around the modules of an import map, with further lines of its head, the first
    module, and lines after it."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            *head,
            '<meta name="color-scheme" content="light dark">',
            f"<title>{html.escape(title)} \u00b7 MRLM</title>",
            f'<script type="importmap" nonce="{nonce}">{json.dumps({"imports": modules})}</script>',
            '</head><body><div id="app"><noscript>This page needs JavaScript.</noscript></div>',
            f'<script type="module" nonce="{nonce}">import "{start}"</script>',
            *blocks,
            "</body></html>\n",
        ]
    )


def _address(path: Path) -> str:
    source = re.sub(r"^\s*//.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return "data:text/javascript;base64," + base64.b64encode(source.encode()).decode()
