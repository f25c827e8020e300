"""`mrlm why`: the turns and agents that the outcome of an episode came from."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mrlm.core.progress import aligned

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

    how = {"step": step, "agent": agent, "n": n, "against": against, "success": success}
    result = ask(run, episode, **how, announce=lambda cost: typer.echo(str(cost), err=as_json))
    if as_json:
        print(json.dumps(result.record()))
    else:
        _show(result)
    if save:
        typer.echo(f"saved: {result.save()}", err=as_json)
    if not as_json:
        typer.echo(LIMITS)


def _show(result: "Why") -> None:
    from mrlm.tracking.console import printable

    state = "a success" if result.solved else "not a success"
    same = "replayed exactly" if result.exact else "NOT replayed exactly"
    turns = [("turn", "message", "outcome if different", "success", "influence")]
    for entry in result.turns:
        message = " ".join(entry.text.split())[:WIDTH]
        reached = ", ".join(f"{name} {_number(value)}" for name, value in entry.influence.items())
        numbers = _estimate(entry.mean), _estimate(entry.success), reached
        turns.append((f"{entry.agent}:{entry.turn}", message, *numbers))
    agents = [("agent", "outcome if different", "marginal", "Shapley value")]
    for entry in result.agents:
        value = "-" if entry.shapley is None else _estimate(entry.shapley)
        agents.append((entry.agent, _estimate(entry.mean), _estimate(entry.marginal), value))
    lines = [
        f"{result.episode}, step {result.step}: reward {_number(result.reward)}, {state} "
        f"(at least {result.success:g}); {same}",
        aligned(turns),
        aligned(agents),
    ]
    if result.decisive is not None:
        lines.append(f"decisive turn: {result.decisive[0]}:{result.decisive[1]}")
    elif not result.solved:
        lines.append("decisive turn: none; no replacement of a single turn led to a success")
    failed = sum(entry.failed for entry in result.turns)
    lines += [f"note: {failed} branches failed and count in no mean"] * bool(failed)
    lines += [f"note: {note}" for note in result.notes]
    lines.append(
        f"{result.played} episodes in {result.seconds:.2g} s, n = {result.n} of each change, "
        f"against {result.against}; 95 % intervals"
    )
    print(printable("\n".join(lines)))


def _estimate(estimate: "MeanEstimate") -> str:
    if estimate.low is None or estimate.high is None:
        return _number(estimate.value)
    return f"{_number(estimate.value)} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
