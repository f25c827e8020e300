"""`mrlm why`: the turns and agents that the outcome of an episode came from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from mrlm.replays.effects import MeanEstimate
    from mrlm.replays.why import Why

WIDTH = 32
"""Characters of a message in the table."""


def why(
    run: Path,
    episode: str,
    step: int | None = None,
    agent: str = "all",
    n: int = 8,
    against: str = "resample",
    success: float = 1.0,
    save: bool = False,
    as_json: bool = False,
) -> None:
    """Find the turn that decided an episode: replace turns, play on, and compare the outcomes."""
    from mrlm.replays.why import LIMITS
    from mrlm.replays.why import why as ask

    found = ask(
        run,
        episode,
        step=step,
        agent=agent,
        n=n,
        against=against,
        success=success,
        announce=lambda cost: typer.echo(str(cost), err=as_json),
    )
    if as_json:
        print(json.dumps(found.record()))
    else:
        _show(found)
    if save:
        typer.echo(f"saved: {found.save()}", err=as_json)
    if not as_json:
        typer.echo(LIMITS)


def _show(found: Why) -> None:
    console = Console(highlight=False, soft_wrap=True)
    state = "a success" if found.solved else "not a success"
    same = "replayed exactly" if found.exact else "NOT replayed exactly"
    console.print(
        Text(
            f"{found.episode}, step {found.step}: reward {_number(found.reward)}, {state} "
            f"(at least {found.success:g}); {same}"
        )
    )
    turns = _table("turn", "message", "outcome if different", "success", "influence")
    for each in found.turns:
        reached = [
            f"{name} {'-' if value is None else f'{value:.3g}'}"
            for name, value in each.influence.items()
        ]
        message = " ".join(each.text.split())[:WIDTH]
        rows = (_estimate(each.mean), _estimate(each.success), ", ".join(reached))
        _row(turns, f"{each.agent}:{each.turn}", message, *rows)
    console.print(turns)
    agents = _table("agent", "outcome if different", "marginal", "Shapley value")
    for each in found.agents:
        value = "-" if each.shapley is None else _estimate(each.shapley)
        _row(agents, each.agent, _estimate(each.mean), _estimate(each.marginal), value)
    console.print(agents)
    place = found.decisive
    if place is not None:
        console.print(Text(f"decisive turn: {place[0]}:{place[1]}"))
    elif not found.solved:
        console.print(Text("decisive turn: none; no replacement of a single turn led to a success"))
    failed = sum(each.failed for each in found.turns)
    lines = [f"{failed} branches failed and count in no mean"] if failed else []
    for line in (*lines, *found.notes):
        console.print(Text(f"note: {line}"))
    console.print(
        Text(
            f"{found.played} episodes in {found.seconds:.2g} s, n = {found.n} of each change, "
            f"against {found.against}; 95 % intervals"
        )
    )


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name)
    return table


def _row(table: Table, *cells: str) -> None:
    from mrlm.tracking.console import printable

    texts: Sequence[Text] = [Text(printable(cell)) for cell in cells]
    table.add_row(*texts)


def _estimate(found: MeanEstimate) -> str:
    if found.low is None or found.high is None:
        return _number(found.value)
    return f"{_number(found.value)} [{found.low:.2f}, {found.high:.2f}]"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
