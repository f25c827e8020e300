"""What runs leave behind: every curve as JSON, the improvement of every algorithm with its
interval, plots, and the table and pictures of a page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.learning.runs import Curve
from benchmarks.learning.table import GAMES
from mrlm.core.statistics import Interval, mean_interval

RESULTS = "curves.json"
TABLE_MARKS = ("<!-- learning: written by `python -m benchmarks.learning` -->", "<!-- end -->")


@dataclass(frozen=True, slots=True)
class Finding:
    """What all seeds of an algorithm say about a game.

    Args:
        start, end: mean reward of an agent in the first and last evaluation.
        gain: their difference with its 95 % interval over seeds (Student's t).
        verdict: `learns` (the lower bound is above 0), `does not learn`, or `as expected` where no
            improvement was expected and none was found; with one seed, `one seed`.
    """

    algorithm: str
    game: str
    seeds: int
    start: float
    end: float
    gain: Interval
    verdict: str
    seconds: float
    tokens: float

    @property
    def failed(self) -> bool:
        """Whether it does not learn what it can."""
        return self.verdict == "does not learn"


def merge(folder: Path, curves: Iterable[Curve]) -> list[Curve]:
    """Add curves to those of `folder`; a run that was done again replaces the older one."""
    path = folder / RESULTS
    known = json.loads(path.read_text())["curves"] if path.is_file() else []
    names = {field.name for field in fields(Curve)}
    old = [Curve(**{key: row[key] for key in names}) for row in known]
    table = {(c.algorithm, c.game, c.seed): c for c in [*old, *curves]}
    found = [table[key] for key in sorted(table)]
    folder.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(json.dumps(_rounded(asdict(curve))) for curve in found)
    path.write_text(f'{{"curves": [\n{rows}\n]}}\n')
    return found


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    rewards = [round(reward, 4) for reward in row["rewards"]]
    return row | {"rewards": rewards, "seconds": round(row["seconds"], 1)}


def findings(curves: Sequence[Curve]) -> list[Finding]:
    """One per algorithm and game, of the runs that came to their end."""
    groups: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves:
        if not curve.error:
            groups.setdefault((curve.algorithm, curve.game), []).append(curve)
    return [_finding(*key, found) for key, found in sorted(groups.items())]


def _finding(algorithm: str, game: str, found: list[Curve]) -> Finding:
    gain = mean_interval([curve.gain for curve in found])
    if len(found) == 1:
        verdict = "one seed"
    elif gain[1] > 0:
        verdict = "learns"
    else:
        verdict = "does not learn"
    return Finding(
        algorithm,
        game,
        len(found),
        _mean(curve.rewards[0] for curve in found),
        _mean(curve.rewards[-1] for curve in found),
        gain,
        verdict,
        _mean(curve.seconds for curve in found),
        _mean(curve.tokens for curve in found),
    )


def markdown(found: Sequence[Finding], machine: str) -> str:
    """The table for a page."""
    heads = ("algorithm", "game", "seeds", "first", "last", "gain, 95 %", "verdict", "s per run")
    lines = [heads, ("---",) * len(heads)]
    for row in found:
        mean, low, high = row.gain
        spread = f"{mean:+.2f}" + ("" if row.seeds == 1 else f" ({low:+.2f}..{high:+.2f})")
        lines.append(
            (
                row.algorithm,
                row.game,
                str(row.seeds),
                f"{row.start:.2f}",
                f"{row.end:.2f}",
                spread,
                row.verdict,
                f"{row.seconds:.0f}",
            )
        )
    text = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([f"Measured on {machine}.", "", *text])


def write_page(
    page: Path, found: Sequence[Finding], machine: str, pictures: Mapping[str, Path]
) -> None:
    """Write the table between its marks, and after every line `<!-- curve: NAME -->` of a page the
    picture of that algorithm.

    Raises:
        ValueError: the page has no place for the table.
    """
    text = page.read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(TABLE_MARKS[0])}.*?{re.escape(TABLE_MARKS[1])}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(
            f"{page}: it has no line {TABLE_MARKS[0]!r} followed by {TABLE_MARKS[1]!r}"
        )
    table = f"{TABLE_MARKS[0]}\n{markdown(found, machine)}\n{TABLE_MARKS[1]}"
    text = pattern.sub(lambda _: table, text)
    for name, picture in pictures.items():
        place = re.compile(rf"<!-- curve: {re.escape(name)} -->\n(!\[[^\n]*\n)?")
        where = picture.relative_to(page.parent).as_posix()
        line = f"<!-- curve: {name} -->\n![{name} on the matrix games]({where})\n"
        text = place.sub(lambda _, line=line: line, text)
    page.write_text(text, encoding="utf-8")


def plots(folder: Path, curves: Sequence[Curve]) -> dict[str, Path]:
    """A picture per algorithm: its games, every seed thin and the mean thick; none without
    matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        return {}
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[str, Path] = {}
    for name in dict.fromkeys(curve.algorithm for curve in curves):
        own = [curve for curve in curves if curve.algorithm == name and not curve.error]
        games = [game for game in [*GAMES, "relay"] if any(c.game == game for c in own)]
        if not games:
            continue
        figure, axes = plt.subplots(1, len(games), figsize=(2.6 * len(games), 2.2), squeeze=False)
        for place, game in zip(axes[0], games, strict=True):
            panel(place, [curve for curve in own if curve.game == game], game)
        figure.tight_layout()
        paths[name] = folder / f"{name}.png"
        figure.savefig(paths[name], dpi=80)
        plt.close(figure)
    return paths


def panel(axes: Any, curves: Sequence[Curve], title: str) -> None:
    """The runs of one game: every seed thin, their mean thick."""
    steps = curves[0].steps
    same = [curve.rewards for curve in curves if curve.steps == steps]
    for rewards in same:
        axes.plot(steps, rewards, color="#90a4ae", lw=0.7)
    axes.plot(steps, [_mean(column) for column in zip(*same, strict=True)], color="#1565c0", lw=2)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("iteration", fontsize=8)
    axes.set_ylabel("reward", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.set_ylim(-0.05, 1.05)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
