"""Writes `__init__.pyi` of `mrlm`, `mrlm.config` and `mrlm.core`: the names that are made when they
are first used, as type checkers read them.

    python -m scripts.faces            write them
    python -m scripts.faces --check    exit with 1 if they are out of date
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import mrlm
import mrlm.config
import mrlm.core
from mrlm.config.aliases import rows
from mrlm.core.faces import Face, faces

HERE = Path(mrlm.__file__).parent
HEAD = '"""Written by `python -m scripts.faces`."""\n'


def imported(module_of: Mapping[str, str]) -> str:
    """Import lines that export each name."""
    rows = sorted((module, name) for name, module in module_of.items())
    return "".join(f"from {module} import {name} as {name}\n" for module, name in rows)


def config_classes(every: Iterable[Face]) -> str:
    """The config classes, and the words they share; a name of another library is a config of the
    algorithm it means."""
    head = "from typing import Any\n\nfrom pydantic.dataclasses import dataclass\n\n"
    words = [f"    {name}: {kind} | None = None\n" for name, (_, kind, *_) in rows().items()]
    mixin = f"@dataclass(kw_only=True)\nclass FlatWords:\n{''.join(words)}\n"
    configs = [face for face in every if face.kind == "config"]
    classes = {face.algorithm: face.name for face in faces().values() if face.kind == "algorithm"}
    imports = {classes[face.algorithm]: f"mrlm.algorithms.{face.algorithm}" for face in configs}
    bodies = [
        "@dataclass(kw_only=True)\n"
        f"class {face.name}(FlatWords, {classes[face.algorithm]}): ..."
        "  # pyright: ignore[reportIncompatibleVariableOverride]\n"
        for face in configs
    ]
    return head + imported(imports) + "\n" + mixin + "\n".join(bodies)


def pages() -> dict[Path, str]:
    """File -> what it should hold."""
    every = sorted(faces().values(), key=lambda face: face.name)
    by_kind: dict[str, list[str]] = defaultdict(list)
    for face in every:
        by_kind[face.kind].append(face.name)
    algorithms = {
        face.name: f"mrlm.algorithms.{face.algorithm}" for face in every if face.kind == "algorithm"
    }
    configs = dict.fromkeys(by_kind["config"], "mrlm.config")
    trainers = "".join(f"class {name}(Trainer): ...\n" for name in by_kind["trainer"])
    home: dict[str, str] = {**mrlm.HOME, **algorithms, **configs}
    top = f"{HEAD}\n{imported(home)}\n__version__: str\n\n{trainers}"
    sections = {name: module for name, module in mrlm.config.HOME.items() if name != "FlatWords"}
    config = f"{HEAD}\n{imported(sections)}{config_classes(every)}"
    core = f"{HEAD}\n{imported(mrlm.core.HOME)}"
    texts = {"": top, "config": config, "core": core}
    return {HERE / folder / "__init__.pyi": text for folder, text in texts.items()}


def main() -> int:
    """Write the files, or say which are out of date."""
    check = "--check" in sys.argv[1:]
    old = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    for path in old:
        print(f"{path.relative_to(HERE.parent)} is out of date" if check else f"wrote {path.name}")
        if not check:
            path.write_text(pages()[path], encoding="utf-8")
    return int(check and bool(old))


if __name__ == "__main__":
    raise SystemExit(main())
