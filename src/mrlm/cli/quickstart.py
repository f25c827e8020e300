"""`mrlm quickstart`: the first run, from a config that is part of the package."""

from __future__ import annotations

from pathlib import Path

from mrlm.cli.train import train

CONFIG = Path(__file__).parent / "examples" / "quickstart.yaml"


def quickstart(output: Path | None = None, steps: int | None = None, quiet: bool = False) -> None:
    """Train two agents together on the embedded model: two minutes on two cores."""
    train(config=CONFIG, output=output, steps=steps, quiet=quiet)
