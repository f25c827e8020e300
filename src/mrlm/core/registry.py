"""The registry of plug-ins, by file name: `load("algorithms", "grpo")` is the plug-in in
`mrlm/algorithms/grpo.py`, and `load("algorithms", "my_package.mine:Mine")` a user's own."""

import ast
import difflib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any

from mrlm.core.errors import PluginError
from mrlm.core.log import log

_searched: set[str] = set()
"""Folders of the user; code that is imported from them is named in the log."""

PACKAGE = Path(__file__).parent.parent
WINGS = ("algorithms", "environments", "workflows", "engines", "trackers", "rules")

REFUSED = {
    ("algorithms", name): f"{name} moves continuous actions along the gradient of a critic, and a "
    "language model's actions are tokens, which have none; use sac, which is its sibling for "
    "discrete actions, or ppo"
    for name in ("td3", "ddpg")
} | {
    ("algorithms", name): f"{name} is another library's name; {instead}"
    for name, instead in {
        "iac": "use ippo with loss_type: reinforce, critic: separate and level: turn",
        "maac": "use mappo with loss_type: reinforce",
        "marlhf": "it is a pipeline of stages here: mrlm train --config configs/marlhf.yaml",
        "kto": "use dpo for pairs, or reinforce for single scored answers",
    }.items()
}
"""Names of other libraries that are not supported, with the reason."""


def names(wing: str) -> list[str]:
    """Names of the plug-ins of a wing, without importing any."""
    return sorted(files(wing))


def describe(wing: str, name: str) -> str:
    """First sentence of the plug-in's docstring, without importing it."""
    docstring = ast.get_docstring(ast.parse(files(wing)[name].read_text(encoding="utf-8"))) or ""
    sentence = re.match(r".*?(?:(?<!\bDr)\.(?=\s)|$)", " ".join(docstring.split("\n\n")[0].split()))
    return sentence[0] if sentence else ""


def load(wing: str, name: str) -> Any:
    """The plug-in object called `name`.

    The plug-in of a module is its `PLUGIN`. A name with a colon is `module:attribute`.

    Raises:
        PluginError: an unknown name (and the nearest), or the user's module cannot be imported.
    """
    if ":" in name:
        return _load_reference(name)
    if (wing, name) in REFUSED:
        raise PluginError(f"{wing}: {REFUSED[wing, name]}")
    module = vars(importlib.import_module(path)) if (path := module_of(wing, name)) else {}
    if "PLUGIN" not in module:
        raise PluginError(
            f"{unknown(name, names(wing), wing)}; for your own write 'my_package.module:Name'"
        )
    return module["PLUGIN"]


def unknown(name: str, names: list[str], what: str) -> str:
    """The message about an unknown name, with the nearest one and all known ones."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{what}: {name!r} does not exist{hint} (known: {', '.join(names)})"


def source_of(plugin: Any) -> str:
    """`module:Name` of a class or function, as a config file may name it."""
    target = plugin if inspect.isclass(plugin) or inspect.isfunction(plugin) else type(plugin)
    return f"{target.__module__}:{target.__qualname__}"


def files(wing: str) -> dict[str, Path]:
    """Name -> file of every plug-in of a wing, without importing any: its files, its folders, and
    those of its families, which are folders that are no plug-in themselves."""
    files = _plugins(PACKAGE / wing)
    for path in sorted((PACKAGE / wing).glob("*/__init__.py")):
        if path.parent.name not in files:
            files |= _plugins(path.parent)
    return files


def module_of(wing: str, name: str) -> str:
    """The module of a plug-in, without reading other files; empty if there is none."""
    if name.isidentifier() and not name.startswith("_"):
        for depth in ("", "*/"):
            for end in (".py", "/__init__.py"):
                for path in (PACKAGE / wing).glob(f"{depth}{name}{end}"):
                    if "PLUGIN" in path.read_text(encoding="utf-8"):
                        parts = (path.parent / name if end == ".py" else path.parent).parts
                        return ".".join(("mrlm", *parts[len(PACKAGE.parts) :]))
    return ""


def _plugins(folder: Path) -> dict[str, Path]:
    """Name -> file of the plug-ins in a folder."""
    files = {path.stem: path for path in folder.glob("*.py")}
    files |= {path.parent.name: path for path in folder.glob("*/__init__.py")}
    return {
        name: path
        for name, path in files.items()
        if not name.startswith("_") and "PLUGIN" in path.read_text(encoding="utf-8")
    }


def search(folder: Path) -> None:
    """Also search a folder for the user's modules, after all others."""
    directory = str(folder.resolve())
    _searched.add(os.path.join(directory, ""))
    if directory not in sys.path:
        sys.path.append(directory)


def is_reference(text: str) -> bool:
    """Whether a text is `module:Name`, which `load` would import."""
    module, _, name = text.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def _load_reference(reference: str) -> Any:
    module_name, _, attribute = reference.partition(":")
    if not is_reference(reference):
        raise PluginError(
            f"{reference!r} is not the name of a class; write 'my_package.module:Name'"
        )
    new = module_name not in sys.modules
    try:
        target: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise PluginError(
            f"{reference!r}: cannot import module {module_name!r} ({error}); "
            "its folder must be that of the config, the current one, or on PYTHONPATH"
        ) from error
    file = getattr(target, "__file__", None)
    if new and file is not None and str(Path(file).resolve()).startswith(tuple(_searched)):
        log.info("%s is imported, as %s names it", file, reference)
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise PluginError(f"{reference!r}: module {module_name!r} has no {attribute!r}")
        target = getattr(target, part)
    return target
