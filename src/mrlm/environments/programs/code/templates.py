"""Templates of programming problems: a sentence, a reference solution, and a sampler of arguments.
Names and numbers vary, so that one template yields many problems."""

import copy
import random
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from string import Template as Text
from typing import Any

Args = tuple[Any, ...]
Values = Mapping[str, Any]
PLACES = "abcde"
"""Placeholders of the parameters in the texts of a template: `$a`, `$b`, ..."""
POOL = 24
"""Number of calls sampled for a problem, from which the most discriminating are chosen."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A problem sampled from a template.

    Args:
        signature: its name with its parameters, `larger(a, b)`.
        calls: arguments and the solution's results for them; no two are equal.
    """

    text: str
    entry: str
    signature: str
    source: str
    calls: tuple[tuple[Args, Any], ...]


@dataclass(frozen=True, slots=True)
class ProgramTemplate:
    """A template of problems of one kind.

    In `text` and `body`, `$f` is the name of the function, `$a`, `$b`, ... are its parameters, and
    every name in `draws` is replaced by the value sampled for it.

    Args:
        level: difficulty, 1 to 3.
        text: description of the function.
        body: lines of the reference solution.
        takes: possible names of every parameter.
        called: possible names of the function.
        args: samples the arguments of one call, from a generator and the values of `draws`.
        draws: name -> possible values.
        edges: arguments that are always tested.
    """

    name: str
    level: int
    text: str
    body: str
    takes: Sequence[Sequence[str]]
    called: Sequence[str]
    args: Callable[[random.Random, Values], Args]
    draws: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    edges: Sequence[Args] = ()

    def draw(
        self, rng: random.Random, num_calls: int, accepted: Callable[[str], bool] = bool
    ) -> Drawn | None:
        """A problem with `num_calls` calls, the `edges` never among the first two; `None` if its
        text is not `accepted`, or the sampled values yield too few calls or a trivial problem."""
        values = {name: rng.choice(options) for name, options in self.draws.items()}
        names: list[str] = []
        for pool in self.takes:
            names.append(rng.choice([name for name in pool if name not in names]))
        entry = rng.choice(self.called)
        words = {"f": entry, **dict(zip(PLACES, names, strict=False)), **values}
        text = Text(self.text).substitute(words)
        if not accepted(text):
            return None
        signature = f"{entry}({', '.join(names)})"
        body = textwrap.indent(Text(textwrap.dedent(self.body).strip()).substitute(words), "    ")
        source = f"def {signature}:\n{body}"
        calls = self._calls(rng, values, compiled(source, entry), num_calls)
        return None if calls is None else Drawn(text, entry, signature, source, calls)

    def _calls(
        self, rng: random.Random, values: Values, solve: Callable[..., Any], count: int
    ) -> tuple[tuple[Args, Any], ...] | None:
        edges = {repr(args): args for args in self.edges[: max(count - 2, 0)]}
        drawn = [self.args(rng, values) for _ in range(POOL)]
        others = {repr(args): args for args in drawn if repr(args) not in edges}
        chosen, always = (
            [(args, solve(*copy.deepcopy(args))) for args in some.values()]
            for some in (others, edges)
        )
        chosen = _spread(chosen)[: count - len(always)]
        calls = chosen[:2] + always + chosen[2:]
        return None if len(calls) < count or _is_lazy(calls) else tuple(calls)


def compiled(source: str, entry: str) -> Callable[..., Any]:
    """The function of a built-in solution; must never be used for untrusted code."""
    namespace: dict[str, Any] = {}
    exec(compile(source, "<solution>", "exec"), namespace)
    return namespace[entry]


def _is_lazy(calls: Sequence[tuple[Args, Any]]) -> bool:
    """Whether a constant result, or returning an argument, passes all the calls, or all but one of
    more than three."""
    needed = 2 if len(calls) > 3 else 1
    results = [repr(result) for _, result in calls]
    if len(calls) - max(map(results.count, results)) < needed:
        return True
    columns = zip(*(map(repr, args) for args, _ in calls), strict=True)
    return any(
        sum(argument != result for argument, result in zip(column, results, strict=True)) < needed
        for column in columns
    )


def _spread(calls: list[tuple[Args, Any]]) -> list[tuple[Args, Any]]:
    """The same calls, ordered so that different results alternate: a constant result passes few of
    the first ones."""
    by_result: dict[str, list[tuple[Args, Any]]] = {}
    for call in calls:
        by_result.setdefault(repr(call[1]), []).append(call)
    rounds = max(map(len, by_result.values()), default=0)
    return [group[i] for i in range(rounds) for group in by_result.values() if i < len(group)]
