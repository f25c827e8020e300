"""The child process that compares two mathematical expressions with math-verify, one request per
line. It runs under resource limits that it sets itself; the parent kills it at the deadline."""

import contextlib
import logging
import math
import re
import resource
from typing import Any

from mrlm.environments.shared.child_process import answering

MEMORY = 2 << 30
"""Limit of the address space, in bytes."""

REWRITES = [
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\^\(([^()]*)\)"), r"^{\1}"),
    (re.compile(r"\^(-?\d{2,}|-\d)"), r"^{\1}"),
    (re.compile(r"(?<!\\)\bsqrt\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"\\?\bexp\(([^()]*)\)"), r"e^{\1}"),
    (re.compile(r"√\(?(\w+)\)?"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![\\A-Za-z])pi(?![A-Za-z])"), r"\\pi "),
    (re.compile(r"(?<![\\A-Za-z])(?:infinity|inf|oo)(?![A-Za-z])"), r"\\infty "),
    (re.compile(r"<="), r"\\le "),
    (re.compile(r">="), r"\\ge "),
    (re.compile(r"[*×·]"), r"\\cdot "),
    (re.compile(r"÷"), "/"),
]
"""Plain notation -> LaTeX, the only input of the parser."""


def limit() -> None:
    """Set resource limits: no core files, no written files, little memory, few open files."""
    for what, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_AS, MEMORY),
    ):
        with contextlib.suppress(ValueError, OSError):  # a stricter limit is in force already
            resource.setrlimit(what, (most, most))


def allow(seconds: float) -> None:
    """Extend the CPU time limit by that of one request, so that the process ends even without its
    parent."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def latex(text: str) -> str:
    """A plain or LaTeX expression as LaTeX."""
    for pattern, replacement in REWRITES:
        text = pattern.sub(replacement, text)
    return text


def serve() -> None:
    """Compare expressions until the input ends."""
    logging.disable(logging.CRITICAL)
    from math_verify import LatexExtractionConfig, parse, verify

    def read(text: str) -> Any:
        return parse(
            f"${latex(text)}$",
            [LatexExtractionConfig()],
            fallback_mode="no_fallback",
            extraction_mode="first_match",
            parsing_timeout=None,  # type: ignore[arg-type]
        )

    def verdict(answer: str, gold: str) -> str:
        gold_expr = read(gold)
        if not gold_expr:
            return "gold"
        answer_expr = read(answer)
        if not answer_expr:
            return "unparseable"
        return "right" if verify(gold_expr, answer_expr, timeout_seconds=None) else "wrong"

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        allow(request["seconds"])
        try:
            return {"verdict": verdict(request["answer"], request["gold"])}
        except (Exception, RecursionError, MemoryError):  # whatever fails cannot be parsed
            return {"verdict": "unparseable"}

    verdict("(x+1)^2", "x^2+2x+1")  # triggers lazy imports before deadlines apply
    limit()
    answering(answer)
