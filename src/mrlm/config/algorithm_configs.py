"""The config class of an algorithm's trainer: the algorithm's settings and the flat words."""

from __future__ import annotations

from functools import cache
from typing import Any, get_type_hints

from pydantic.dataclasses import dataclass

from mrlm.config.flat_words import FlatWords
from mrlm.core import registry
from mrlm.core.faces import faces


@cache
def config_class(name: str) -> type[Any]:
    """The class `XConfig`, made once.

    Args:
        name: the public name of a config class (`mrlm.core.faces`).
    """
    face = faces()[name]
    algorithm = registry.load("algorithms", face.algorithm)
    hints = get_type_hints(algorithm, include_extras=True) if face.defaults else {}
    body = {
        "__doc__": f"Settings of `{name.removesuffix('Config')}Trainer`: those of "
        f"`{algorithm.__name__}`, and the flat words of other trainers.",
        "__module__": algorithm.__module__,
        "__qualname__": name,
        "__annotations__": {key: hints[key] for key in face.defaults},
        **face.defaults,
    }
    return dataclass(kw_only=True, config=algorithm.__pydantic_config__)(
        type(name, (FlatWords, algorithm), body)
    )
