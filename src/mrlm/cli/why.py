"""`mrlm why`: the turns and agents that the outcome of an episode came from."""

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

    result = ask(
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
        print(json.dumps(result.record()))
    else:
        _show(result)
    if save:
        typer.echo(f"saved: {result.save()}", err=as_json)
    if not as_json:
        typer.echo(LIMITS)


def _show(result: "Why") -> None:
    console = Console(highlight=False, soft_wrap=True)
    state = "a success" if result.solved else "not a success"
    same = "replayed exactly" if result.exact else "NOT replayed exactly"
    console.print(
        Text(
            f"{result.episode}, step {result.step}: reward {_number(result.reward)}, {state} "
            f"(at least {result.success:g}); {same}"
        )
    )
    turns = _table("turn", "message", "outcome if different", "success", "influence")
    for entry in result.turns:
        reached = [
            f"{name} {'-' if value is None else f'{value:.3g}'}"
            for name, value in entry.influence.items()
        ]
        message = " ".join(entry.text.split())[:WIDTH]
        rows = (_estimate(entry.mean), _estimate(entry.success), ", ".join(reached))
        _row(turns, f"{entry.agent}:{entry.turn}", message, *rows)
    console.print(turns)
    agents = _table("agent", "outcome if different", "marginal", "Shapley value")
    for entry in result.agents:
        value = "-" if entry.shapley is None else _estimate(entry.shapley)
        _row(agents, entry.agent, _estimate(entry.mean), _estimate(entry.marginal), value)
    console.print(agents)
    decisive_turn = result.decisive
    if decisive_turn is not None:
        console.print(Text(f"decisive turn: {decisive_turn[0]}:{decisive_turn[1]}"))
    elif not result.solved:
        console.print(Text("decisive turn: none; no replacement of a single turn led to a success"))
    failed = sum(entry.failed for entry in result.turns)
    lines = [f"{failed} branches failed and count in no mean"] if failed else []
    for line in (*lines, *result.notes):
        console.print(Text(f"note: {line}"))
    console.print(
        Text(
            f"{result.played} episodes in {result.seconds:.2g} s, n = {result.n} of each change, "
            f"against {result.against}; 95 % intervals"
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


def _estimate(estimate: "MeanEstimate") -> str:
    if estimate.low is None or estimate.high is None:
        return _number(estimate.value)
    return f"{_number(estimate.value)} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
