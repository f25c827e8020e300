"""`mrlm new`: writes a plug-in with the smallest config that trains with it. The texts are the
examples of CONTRIBUTING.md."""

import importlib.util
import keyword
import re
from pathlib import Path
from typing import Literal, NamedTuple

Kind = Literal["algorithm", "environment", "workflow"]


class Example(NamedTuple):
    """A plug-in of one file, whose class has its name in camel case, and the YAML of a config that
    trains with it."""

    name: str
    code: str
    config: str


def _example(name: str) -> Example:
    texts = Path(__file__).parent / "examples"
    code, config = (texts / f"{name}{suffix}" for suffix in (".txt", ".yaml"))
    return Example(name, code.read_text(encoding="utf-8"), config.read_text(encoding="utf-8"))


EXAMPLES: dict[Kind, Example] = {
    "algorithm": _example("ranked"),
    "environment": _example("echo"),
    "workflow": _example("second_look"),
}


def class_of(name: str) -> str:
    """The class name of a plug-in."""
    return "".join(part.capitalize() for part in name.split("_"))


def check_name(name: str, where: str, such_as: str) -> None:
    """Check the name of a new module; messages have its place `where`, and a possible name
    `such_as`. Raises `ConfigError`: it is not a module name, or an installed module has it."""
    from mrlm.core.errors import ConfigError

    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise ConfigError(
            f"{where} is not a module name; use lower-case letters, digits and _, such as {such_as}"
        )
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin is not None:  # a folder alone is no module
        raise ConfigError(
            f"{where}: an installed module has this name; choose another, such as my_{name}"
        )


def written(kind: Kind, name: str) -> dict[str, str]:
    """File -> text of a new plug-in and its config. Raises `ConfigError`: the name is not a module
    name, or an installed module has it."""
    check_name(name, f"NAME={name!r}", f"my_{kind}")
    example = EXAMPLES[kind]
    forms = ((_title(each), class_of(each), each) for each in (example.name, name))
    words = dict(zip(*forms, strict=True))

    def renamed(text: str) -> str:
        return re.sub("|".join(words), lambda match: words[match[0]], text)

    return {f"{name}.py": renamed(example.code), f"{name}.yaml": renamed(example.config)}


def _title(name: str) -> str:
    return f'"""{name.replace("_", " ").capitalize()}:'


def new(kind: Kind, name: str) -> None:
    """Write NAME.py, a plug-in to start from, and NAME.yaml, which trains with it."""
    from mrlm.core.errors import ConfigError

    for file in (f"{name}.py", f"{name}.yaml"):
        if Path(file).exists():
            raise ConfigError(f"{file} exists already; choose another name, or move it away")
    files = written(kind, name)
    for file, text in files.items():
        Path(file).write_text(text, encoding="utf-8")
    config = f"mrlm train --config {name}.yaml"
    print(f"wrote {' and '.join(files)}; next:\n  {config} --dry-run\n  {config}")
