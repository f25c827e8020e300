"""`mrlm app`: what a program that calls agents would be trained on."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from mrlm.cli._options import app_sections, config_to_play
from mrlm.core.progress import counted

if TYPE_CHECKING:
    from mrlm.core.episodes import Episode, Group

SHOWN = 400
"""Characters of a text."""


def app(
    action: Literal["check"],
    app: str,
    overrides: list[str] | None = None,
    reward: str | None = None,
    data: str | None = None,
    agents: str | None = None,
    model: str | None = None,
    num_episodes: int = 1,
) -> None:
    """Play an app with the untrained model: its calls, what would be trained, what cannot be."""
    from mrlm.core.sync_async import run_async
    from mrlm.runs import rehearse
    from mrlm.serving.apps.session import NOTES

    sections = app_sections(app, reward, data, agents)
    loaded = config_to_play(None, overrides, model or "mrlm/tiny", sections)
    play, _ = rehearse(loaded)
    first, second = (run_async(play.evaluate(num_episodes, 1, greedy=False)) for _ in range(2))
    for group in first:
        for episode in group:
            print(f"{_shown(episode)}\n")
    notes = [*NOTES, *_silent(first, play.environments[0].agents), *_changed(first, second)]
    for note in notes:
        print(f"note: {note}")
    failed = sum(episode.failed for group in first for episode in group)
    played = counted(sum(map(len, first)), "episode")
    print(f"{played}, {failed} failed, {counted(len(notes), 'note')}: nothing was trained")


def _shown(episode: Episode) -> str:
    """The calls of an episode in their order, and what would be trained of each agent."""
    lines = [f"{episode.task.id}: {episode.error or f'reward {episode.reward:g}'}"]
    for turn in sorted(episode.turns, key=lambda turn: (turn.order, turn.agent, turn.index)):
        read = len(turn.prompt_ids)
        trained = f"{len(turn)} trained" if turn.trained else "not trained"
        lines.append(
            f"  {turn.agent}, call {turn.index}: {read} tokens read, {trained}, reward "
            f"{turn.reward:g}"
        )
        lines.append(_text(turn.message.content if turn.message else ""))
    for agent, rollout in episode.rollouts.items():
        seen = rollout.messages[:-1]
        lines.append(f"  {agent} reads at last:")
        lines += [_text(f"{message.role}: {message.content}") for message in seen]
    return "\n".join(lines)


def _text(text: str) -> str:
    from mrlm.tracking.console import printable

    short = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
    return textwrap.indent(printable(short), "    | ", lambda line: True)


def _silent(groups: Sequence[Group], agents: Sequence[str]) -> list[str]:
    spoke = {turn.agent.partition("#")[0] for group in groups for e in group for turn in e.turns}
    return [
        f"agent {agent!r} was never called: a call names it as its model; a client without httpx "
        "needs base_url=mrlm.app.base_url() and api_key=mrlm.app.api_key()"
        for agent in agents
        if agent not in spoke
    ]


def _changed(first: Sequence[Group], second: Sequence[Group]) -> list[str]:
    """Whether two plays with the same random numbers differ."""

    def calls(groups: Sequence[Group]) -> list[list[int]]:
        return [turn.prompt_ids for group in groups for e in group for turn in e.turns]

    if calls(first) == calls(second):
        return []
    return [
        "two plays with the same random numbers differ, so the app depends on something else (a "
        "clock, random numbers of its own, the order of threads): a resumed run does not continue "
        "bit for bit"
    ]
