"""Content that is data: texts, tables and templates in files beside the modules that use them."""

import json
from pathlib import Path
from typing import Any

import yaml

Loader: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
"""That of libyaml, where PyYAML was built with it."""


def parse_yaml(text: str) -> Any:
    """The value of a YAML document that this library has written, or ships."""
    return yaml.load(text, Loader=Loader)


def content(module: str, name: str | None = None) -> Any:
    """The values of the YAML or JSON file beside a module (its `__file__`), by default of the same
    name."""
    path = Path(module).with_suffix(".yaml") if name is None else Path(module).with_name(name)
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else parse_yaml(text)
