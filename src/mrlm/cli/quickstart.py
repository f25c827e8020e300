"""`mrlm quickstart`: the first run, from a config that is part of the package."""

from pathlib import Path

from mrlm.cli.train import train
from mrlm.core.tiny_model import NAME

EXAMPLES = Path(__file__).parent / "examples"
CONFIG = EXAMPLES / "quickstart.yaml"
PRETRAINED = EXAMPLES / "quickstart_pretrained.yaml"


def quickstart(
    output: Path | None = None,
    steps: int | None = None,
    quiet: bool = False,
    model: str | None = None,
    seed: int | None = None,
) -> None:
    """Train two agents together on the embedded model, in two minutes on two cores, or on a
    pretrained one: `--model smollm2`, in ten."""
    overrides = [] if seed is None else [f"training.seed={seed}"]
    if model is None or model == NAME:
        train(overrides, config=CONFIG, output=output, steps=steps, quiet=quiet)
        return
    overrides.append(f"model.model_name_or_path={model}")
    train(overrides, config=PRETRAINED, output=output, steps=steps, quiet=quiet)
