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
    tiny = model in (None, NAME)
    overrides = [] if seed is None else [f"training.seed={seed}"]
    overrides += [] if tiny else [f"model.model_name_or_path={model}"]
    train(overrides, CONFIG if tiny else PRETRAINED, output, steps=steps, quiet=quiet)
