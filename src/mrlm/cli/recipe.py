"""`mrlm recipe`: lists the recipes of papers, shows one, or runs one at one of its scales."""

from pathlib import Path
from typing import Literal

from mrlm.cli._options import refuse
from mrlm.cli.train import train
from mrlm.core.errors import ConfigError
from mrlm.core.progress import aligned
from mrlm.core.registry import unknown

RECIPES = Path(__file__).parents[1] / "recipes"
"""The folder of recipes: for each a folder with a README.md and a YAML file per scale."""
SMALLEST = "cpu"
"""The scale that runs anywhere, on the embedded model."""


def recipe(
    action: Literal["list", "show", "run"] = "list",
    name: str | None = None,
    overrides: list[str] | None = None,
    scale: str | None = None,
    output: Path | None = None,
    steps: int | None = None,
    dry_run: bool = False,
    quiet: bool = False,
) -> None:
    """List the recipes of papers, show one, or run one."""
    if action != "run":
        if overrides:
            raise ConfigError(f"{overrides[0]} is for mrlm recipe run; remove it")
        refuse("is for mrlm recipe run; remove it", output=output, steps=steps, dry_run=dry_run)
    if action == "list":
        refuse("is for mrlm recipe show and run; remove it", scale=scale)
        if name is not None:
            raise ConfigError(f"mrlm recipe list takes no name; use mrlm recipe show {name}")
        print(aligned([(one, _title(one), ", ".join(scales(one))) for one in names()]))
        return
    if name is None:
        raise ConfigError(f"mrlm recipe {action} needs a name; mrlm recipe list has them")
    if action == "show":
        file = RECIPES / known(name) / "README.md" if scale is None else config_of(name, scale)
        print(file.read_text(encoding="utf-8").rstrip())
        return
    config = config_of(name, SMALLEST if scale is None else scale)
    train(overrides, config, output, dry_run=dry_run, steps=steps, quiet=quiet)


def names() -> list[str]:
    """The names of all recipes."""
    return sorted(path.parent.name for path in RECIPES.glob("*/README.md"))


def known(name: str) -> str:
    """The name of a recipe. Raises `ConfigError`: no recipe has this name."""
    if name not in names():
        raise ConfigError(unknown(name, names(), "recipes"))
    return name


def scales(name: str) -> list[str]:
    """The scales of a recipe, from large to small; `cpu_one` is its twin with one agent."""
    stems = {path.stem for path in (RECIPES / name).glob("*.yaml")}
    return [scale for scale in ("paper", "gpu1", SMALLEST, "cpu_one") if scale in stems]


def config_of(name: str, scale: str) -> Path:
    """The config file of a recipe at one scale. Raises `ConfigError`: the recipe does not exist, or
    has no such scale."""
    available = scales(known(name))
    if scale not in available:
        raise ConfigError(f"recipe {name}: {unknown(scale, available, '--scale')}")
    return RECIPES / name / f"{scale}.yaml"


def _title(name: str) -> str:
    with (RECIPES / name / "README.md").open(encoding="utf-8") as lines:
        return lines.readline().removeprefix("# ").strip()
