"""Assignment of the methods of a class to writers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from mrlm.core.errors import ConfigError
from mrlm.environments.class_completion.problems import ClassProblem, Method

Division = Literal["parameters", "dependency"]


def divided(
    problem: ClassProblem, num_writers: int, by: Division | Sequence[Sequence[str]]
) -> list[list[str]]:
    """Names of the methods of each writer: every method once, in numbers as equal as possible.

    Args:
        problem: the class; its own division takes precedence over `by`.
        num_writers: number of writers.
        by: `parameters`: the first writer gets the methods with the fewest parameters;
            `dependency`: those that depend on no others; or lists of names, one per writer.

    Raises:
        ConfigError: the names do not match the methods of the class.
    """
    given = problem.division if problem.division is not None else by
    if not isinstance(given, str):
        return _listed(problem, num_writers, given)
    ranks = _depths(problem.methods)
    if given == "parameters":
        ranks = {method.name: method.params % 1_000 for method in problem.methods}
    ordered = sorted(problem.methods, key=lambda method: ranks[method.name])
    names, parts = [method.name for method in ordered], []
    least, more = divmod(len(names), num_writers)
    for writer in range(num_writers):
        size = least + (writer < more)
        parts.append(names[:size])
        names = names[size:]
    return parts


def _listed(
    problem: ClassProblem, num_writers: int, given: Sequence[Sequence[str]]
) -> list[list[str]]:
    parts = [[part] if isinstance(part, str) else list(part) for part in given]
    flat = sorted(name for part in parts for name in part)
    known = sorted(method.name for method in problem.methods)
    if len(parts) != num_writers or flat != known or not all(parts):
        raise ConfigError(
            f"class {problem.name}: the division {parts} must give each of {num_writers} writers "
            f"some of the methods {', '.join(known)}, and each method to one writer"
        )
    return parts


def _depths(methods: Sequence[Method]) -> dict[str, int]:
    """Depth of each method's dependencies: 0 for a method without any. In a cycle no method counts
    twice."""
    needs: Mapping[str, Sequence[str]] = {method.name: method.needs for method in methods}

    def depth(name: str, above: frozenset[str]) -> int:
        below = [each for each in needs.get(name, ()) if each in needs and each not in above]
        return max((1 + depth(each, above | {each}) for each in below), default=0)

    return {name: depth(name, frozenset({name})) for name in needs}
