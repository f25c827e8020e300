"""Settings and classes of other libraries without an equivalent here: the reason, and alternatives.
Those with an equivalent are in `aliases.yaml`."""

from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

OFF: tuple[object, ...] = (None, False)
"""Values that disable a setting in most libraries."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A setting without an equivalent: the reason of refusal with the alternative, and values equal
    to the behaviour here, which are accepted and dropped."""

    reason: str
    same: tuple[object, ...] = OFF

    def accepts(self, value: object) -> bool:
        """Whether a value equals the behaviour here."""
        plain = list(value) if isinstance(value, tuple) else value
        plain = str(plain.value) if isinstance(plain, Enum) else plain  # such as transformers' own
        return any(type(plain) is type(accepted) and plain == accepted for accepted in self.same)


def read_table(name: str) -> Any:
    """The content of a YAML file of this package."""
    from mrlm.core.content import content  # not needed for --help on the command line

    return content(__file__, name)


@cache
def refused_classes() -> dict[str, str]:
    """Class of another library that does not exist under its name -> the alternative."""
    return read_table("other_classes.yaml")


@cache
def refused_settings() -> dict[str, Refused]:
    """Setting -> reason of refusal (`other_libraries.yaml`). Settings of the run's algorithm and
    words of `aliases.yaml` have precedence."""
    return {
        name: Refused(row["reason"], tuple(row.get("also", {}).get(name, row.get("same", OFF))))
        for row in read_table("other_libraries.yaml")
        for name in row["names"].split()
    }


def refused_text(name: str) -> str | None:
    """The reason why a setting of another library is refused; `None` if it is unknown."""
    setting = refused_settings().get(name)
    return None if setting is None else f"no setting of MRLM: {setting.reason}"
