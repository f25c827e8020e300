"""The constructor arguments of an object, kept with it, from which a record can describe it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False, slots=True)
class Arguments:
    """Positional and named arguments of a constructor. Copies of an object share them: the rows of
    a data set are not copied for every episode."""

    positional: tuple[Any, ...]
    named: dict[str, Any]

    def __deepcopy__(self, memo: object) -> "Arguments":
        return self


def constructed(new: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """A new object, which keeps the arguments of its constructor as `constructed_with`."""
    if args or named:  # a copy or an unpickled object is made without, and has its own
        new.constructed_with = Arguments(args, named)
    return new
