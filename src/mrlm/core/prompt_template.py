"""Formatters: what an agent reads of a row, as a template or a function."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mrlm.core.errors import ConfigError, DataError

COLUMN = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A text in which `{prompt}`, or the name of another column, is replaced by that of a row. In a
    conversation the result takes the place of the last message.

    Args:
        text: the template; it has at least one column.

    Example:
        >>> PromptTemplate("Short: {prompt}")({"prompt": "What is 2+3?"})
        'Short: What is 2+3?'
    """

    text: str

    def __post_init__(self) -> None:
        if not COLUMN.search(self.text):
            raise ConfigError(
                f"formatters: the template {self.text!r} names no column of a row; write "
                f"{'{prompt} ' + self.text!r}, or give a function row -> prompt"
            )

    def __call__(self, row: Mapping[str, Any]) -> Any:
        """The prompt for a row; a `DataError` if it lacks a column."""
        prompt = row.get("prompt")
        talk = prompt if isinstance(prompt, list) and prompt else None
        columns = dict(row) if talk is None else {**row, "prompt": talk[-1]["content"]}
        missing = [name for name in COLUMN.findall(self.text) if name not in columns]
        if missing:
            raise DataError(
                f"formatters: the template {self.text!r} names the column {missing[0]!r}, and the "
                f"row has {', '.join(columns)}"
            )
        text = COLUMN.sub(lambda match: str(columns[match[1]]), self.text)
        return text if talk is None else [*talk[:-1], {**talk[-1], "content": text}]


def by_agent(formatters: Any, agents: Sequence[str]) -> dict[str, Any]:
    """Agent -> its formatter: from one for all, a list in the order of the agents, or a mapping;
    empty for `None`. Raises `ConfigError`: they are not those of the agents."""
    if formatters is None:
        return {}
    if isinstance(formatters, Mapping):
        unknown = [
            name for name in [*formatters, *agents] if name not in agents or name not in formatters
        ]
        if unknown:
            raise ConfigError(
                f"formatters must have one entry per agent ({', '.join(agents)}); {unknown[0]!r} "
                f"does not match"
            )
        return {agent: formatters[agent] for agent in agents}
    listed = (
        list(formatters) if isinstance(formatters, list | tuple) else [formatters] * len(agents)
    )
    if len(listed) != len(agents):
        raise ConfigError(
            f"formatters has {len(listed)} entries for {len(agents)} agents ({', '.join(agents)})"
        )
    return dict(zip(agents, listed, strict=True))
