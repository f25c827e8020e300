"""One agent plans and assigns subtasks, the others solve them, and it merges their answers."""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mrlm.core.types import Message
from mrlm.workflows._team import Conference, ConferringTeam

_MARKED = string.whitespace + "*"
_BULLET = _MARKED + string.digits + "-."
"""Characters that may precede or follow a name at the beginning of a line."""


@dataclass
class Manager(ConferringTeam):
    """A workflow in which the first agent manages: it reads the environment's question and writes a
    plan, with a line `name: what to do` for each agent that is to help. These agents read the
    question and their own lines, and answer concurrently. The manager reads their answers, and its
    next completion is the team's answer. A plan without such a line costs `penalty` (component
    `no_plan`), the manager is shown a notice, and all agents work on the whole question.

    Args:
        ask: prompt for the manager after the question; `{agents}` is replaced by the other agents'
            names.
        merge: prompt for the manager after the answers; nothing if empty.
        penalty: reward subtracted from the manager, and the team, for a plan that names no agent.
    """

    ask: str = "Write a line for each of {agents}: the name, a colon, and what to do."
    merge: str = ""
    penalty: float = 0.1

    least = 2
    lowest: ClassVar[tuple[tuple[str, float], ...]] = (("penalty", 0),)

    def completions(self, agents: int, turns: int) -> int:
        return turns * (agents + 1)

    async def answer(self, talk: Conference) -> Message:
        manager, *others = talk.names
        talk.show(manager, self.ask.replace("{agents}", ", ".join(others)))
        parts = parts_of((await talk.say(manager)).content, others)
        if not parts:
            talk.penalize(manager, self.penalty, "no_plan")
            talk.show(manager, "That gives nobody a part; they all work on the whole.")
        for name, part in parts.items():
            talk.show(name, part)
        talk.tell(manager, await talk.all_say(parts or others))
        talk.show(manager, self.merge)
        return await talk.say(manager)


def parts_of(plan: str, names: Sequence[str]) -> dict[str, str]:
    """Agent -> text of its lines `name: ...` of a plan, in the order of `names`."""
    parts: dict[str, list[str]] = {}
    folded_names = {name.casefold(): name for name in names}
    for line in plan.splitlines():
        head, colon, part = line.partition(":")
        name = folded_names.get(head.lstrip(_BULLET).rstrip(_MARKED).casefold())
        if colon and name and part.strip():
            parts.setdefault(name, []).append(part.strip())
    return {name: "\n".join(parts[name]) for name in names if name in parts}


PLUGIN = Manager
