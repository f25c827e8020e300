"""Content that is data: texts, tables and templates in files beside the modules that use them."""

import json
from pathlib import Path
from typing import Any

import yaml

Loader: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
"""That of libyaml, where PyYAML was built with it."""

DEEPEST = 64
"""Most levels of lists and mappings in a YAML document."""


def check_depth(text: str) -> None:
    """Raises `yaml.MarkedYAMLError`: the document is nested too deeply (libyaml would exhaust the
    stack of the process), or not YAML."""
    depth = 0
    for event in yaml.parse(text, Loader=Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            problem = f"it is nested more than {DEEPEST} levels deep"
            raise yaml.MarkedYAMLError(None, None, problem, event.start_mark)


def parse_yaml(text: str) -> Any:
    """The value of a YAML document that this library has written, or ships."""
    check_depth(text)
    return yaml.load(text, Loader=Loader)


def content(module: str, name: str | None = None) -> Any:
    """The values of the YAML or JSON file beside a module (its `__file__`), by default of the same
    name."""
    path = Path(module).with_suffix(".yaml") if name is None else Path(module).with_name(name)
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else parse_yaml(text)
