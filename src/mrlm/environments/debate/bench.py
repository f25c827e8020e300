"""Construction of judges from a config: a name, a mapping, a list of them, or a callable."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from mrlm.core.errors import ConfigError
from mrlm.core.language_model import LLMEnvironment
from mrlm.core.registry import unknown
from mrlm.environments.debate.judging import Judge, MajorityJudge, TruthJudge
from mrlm.environments.debate.llm import LLMJudge
from mrlm.environments.debate.rules import RuleBasedJudge

KINDS = {
    "rules": RuleBasedJudge,
    "truth": TruthJudge,
    "llm": LLMJudge,
    "majority": MajorityJudge,
}


def judge_of(given: Any) -> Judge:
    """A judge.

    Args:
        given: a judge; `rules`, `truth`, `llm` (the agent `judge`) or a mapping with such a `kind`
            and the judge's arguments; a list of these, which is a panel (the same as
            `kind: majority` with `judges`); a function or an `LLMEnvironment` to call.

    Raises:
        ConfigError: it is none of these, or has arguments that the judge does not accept.
    """
    if isinstance(given, Judge):
        return given
    if isinstance(given, list | tuple):
        return MajorityJudge([judge_of(each) for each in given])
    if isinstance(given, LLMEnvironment) or callable(given):
        return LLMJudge(ask=given)
    if not isinstance(given, str | Mapping):
        raise ConfigError(f"judge={given!r} is not a judge; name one of {', '.join(KINDS)}")
    arguments: dict[str, Any] = {"kind": given} if isinstance(given, str) else dict(given)
    kind = arguments.pop("kind", None)
    if kind not in KINDS:
        raise ConfigError(unknown(str(kind), list(KINDS), "judge.kind"))
    if kind == "majority":
        arguments["judges"] = [judge_of(each) for each in arguments.get("judges") or ()]
    if kind == "llm" and not {"agent", "ask"} & set(arguments):
        arguments["agent"] = "judge"
    plugin = KINDS[kind]
    try:
        inspect.signature(plugin).bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"judge {kind!r}: {error}") from error
    return plugin(**arguments)
