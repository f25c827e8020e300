"""The mask, the template or the stop token is wrong.

In the recorded tokens of the last steps completions that stopped do not end in one stop token, or
it is never trained while other tokens are; or completions contain marks of a template; or no
token is trained although episodes or pairs were chosen to train on; or engine and trainer
disagree at prompts of one shape (an agent, and the roles of the messages before it) and not at
others.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from mrlm.doctor.alarm import Alarm, cited
from mrlm.doctor.history import History
from mrlm.doctor.messages import Written, written
from mrlm.doctor.progress import gained
from mrlm.doctor.recent import RecentEpisodes, Row, Rows
from mrlm.doctor.rule import Rule
from mrlm.doctor.tokens import TokenTurn, token_turns

CHOSEN_NONE = {
    "frac_dropped_pairs": 1.0,
    "frac_filtered": 1.0,
    "good_answers": 0.0,
    "num_groups_trained": 0.0,
    "episodes/failed": 1.0,
}
"""Metric -> its value where a step has nothing to train on, whatever the mask is."""

Shape = tuple[str, ...]
"""Roles of the messages before a completion."""


@dataclass(slots=True)
class Ends:
    """The ends of an agent's completions in a step.

    Args:
        stopped: episodes of completions that stopped at a token.
        last: their last tokens.
        prompts: one of the last two tokens of a prompt -> the episodes.
        credited: completions of several tokens with an advantage.
        masked: episodes of those whose last token has none.
        shapes: those of all prompts.
    """

    stopped: list[Row] = field(default_factory=list)
    last: Counter[int] = field(default_factory=Counter)
    prompts: dict[int, list[Row]] = field(default_factory=dict)
    credited: int = 0
    masked: list[Row] = field(default_factory=list)
    shapes: set[Shape] = field(default_factory=set)


@dataclass(frozen=True)
class Template(Rule):
    """Tokens that are not those that should be trained.

    Args:
        turns: recorded turns that it needs.
        most: share of turns that must show it.
        even: share of the most common last token below which completions end in no stop token.
        gap: divergence of engine and trainer, in nats per token, at one shape of prompts.
    """

    turns: int = 16
    most: float = 0.9
    even: float = 0.8
    gap: float = 0.5

    do: ClassVar[str] = (
        "look at the prompts and the trained tokens with mrlm train --dry-run; check eos_token, "
        "the chat template and the stop tokens of the engine"
    )

    def ready(self, history: History) -> bool:
        return history.has("tokens/trained", 3)

    def __call__(self, history: History, episodes: RecentEpisodes) -> Iterator[Alarm]:
        since = self._untrained(history)
        if since is not None:
            yield Alarm(since, "no token is trained in 3 steps", evidence=cited(episodes))
            return
        ends, messages = episodes.by_step(_ends), episodes.by_step(written)
        for agent in history.agents:
            policy = history.policies.get(agent)
            stops = [by_agent[agent] for by_agent in ends.values() if agent in by_agent]
            spoken = [by_agent[agent] for by_agent in messages.values() if agent in by_agent]
            for rows, because in (self._stop(stops), self._marks(spoken)):
                if rows:
                    since = min(row["step"] for row in rows)
                    yield Alarm(since, because, agent, policy, cited(rows))
                    break
            else:
                if len({shape for by_agent in stops for shape in by_agent.shapes}) > 1:
                    yield from self._shapes(agent, policy, episodes)

    def _untrained(self, history: History) -> int | None:
        """The first of three steps in which no token was trained for no other reason."""
        steps, trained = history.known("tokens/trained", 3)
        if len(trained) < 3 or trained.any() or gained(history, 8):
            return None
        for name, none in CHOSEN_NONE.items():
            flagged, values = history.known(name, 3)
            if np.isin(steps, flagged[values == none]).any():
                return None
        return int(steps[0])

    def _stop(self, steps: Sequence[Ends]) -> tuple[Rows, str]:
        count = sum(len(step_ends.stopped) for step_ends in steps)
        if count < self.turns:
            return [], ""
        ends: Counter[int] = Counter()
        for step_ends in steps:
            ends.update(step_ends.last)
        last, most = ends.most_common(1)[0]
        if most < self.even * count:
            return [row for step_ends in steps for row in step_ends.stopped], (
                f"completions that stopped end in different tokens (the most common one ends "
                f"{most / count:.0%}): the stop token is not among the trained ones"
            )
        closed = sum(len(step_ends.prompts.get(last, ())) for step_ends in steps)
        if closed >= self.most * count:
            return [row for step_ends in steps for row in step_ends.prompts.get(last, ())], (
                f"prompts end with the stop token (id {last}): the chat template opens no turn of "
                "the assistant"
            )
        credited = sum(step_ends.credited for step_ends in steps)
        masked = sum(len(step_ends.masked) for step_ends in steps)
        if credited < self.turns or masked < self.most * credited:
            return [], ""
        return [row for step_ends in steps for row in step_ends.masked], (
            f"the last token (id {last}) has advantage 0 in {masked} of {credited} "
            "completions whose other tokens have not: the policy does not learn to stop"
        )

    def _marks(self, steps: Sequence[Written]) -> tuple[Rows, str]:
        count = sum(messages.count for messages in steps)
        marked = [mark for messages in steps for mark in messages.marked]
        if count < self.turns or len(marked) < count / 2:
            return [], ""
        return [row for row, _ in marked], (
            f"{len(marked)} of {count} completions contain marks of a template, such as "
            f"{marked[-1][1]!r}: the engine does not stop there"
        )

    def _shapes(self, agent: str, policy: str | None, episodes: RecentEpisodes) -> Iterator[Alarm]:
        gaps: dict[Shape, list[tuple[Row, float]]] = defaultdict(list)
        for step in episodes.by_step(_gaps).values():
            for shape, pairs in step.get(agent, {}).items():
                gaps[shape] += pairs
        means = {shape: float(np.median([g for _, g in pairs])) for shape, pairs in gaps.items()}
        for shape, mean in means.items():
            if mean > self.gap and min(means.values()) < self.gap / 10 and len(gaps[shape]) >= 4:
                rows = [row for row, _ in gaps[shape]]
                because = (
                    f"engine and trainer differ by {mean:.2g} nats per token after messages of "
                    f"{', '.join(shape)}, and by {min(means.values()):.2g} after others"
                )
                yield Alarm(min(row["step"] for row in rows), because, agent, policy, cited(rows))
                return


def _ends(rows: Rows) -> dict[str, Ends]:
    """agent -> the ends of its completions."""
    ends: dict[str, Ends] = defaultdict(Ends)
    for turn in token_turns(rows):
        agent_ends = ends[turn.agent]
        agent_ends.shapes.add(turn.shape)
        stopped = turn.row["finish_reason"] == "stop" and turn.row["tokens"]
        if not stopped or turn.row["sampling"].get("stop"):
            continue
        agent_ends.stopped.append(turn.episode)
        agent_ends.last[turn.last] += 1
        for token in set(turn.prompt_end):
            agent_ends.prompts.setdefault(token, []).append(turn.episode)
        if turn.row["tokens"] > 1:
            _add_credit(agent_ends, turn)
    return ends


def _add_credit(ends: Ends, turn: TokenTurn) -> None:
    packed = turn.packed("advantages")
    if not isinstance(packed, str):
        ends.credited += bool(packed)  # one number for all tokens
        return
    advantages = turn.column("advantages")
    if advantages is not None and advantages.any():
        ends.credited += 1
        if not advantages[-1]:
            ends.masked.append(turn.episode)


def _gaps(rows: Rows) -> dict[str, dict[Shape, list[tuple[Row, float]]]]:
    """agent -> shape of prompts -> episodes with the divergence of engine and trainer."""
    gaps: dict[str, dict[Shape, list[tuple[Row, float]]]] = {}
    for turn in token_turns(rows):
        if (gap := _gap(turn)) is not None:
            gaps.setdefault(turn.agent, {}).setdefault(turn.shape, []).append((turn.episode, gap))
    return gaps


def _gap(turn: TokenTurn) -> float | None:
    """Divergence of the sampler from the last pass of the update, in nats per token."""
    sampled, last = turn.column("logprobs"), turn.column("last_logprobs")
    if sampled is None or last is None or not len(sampled):
        return None
    ratio = np.clip(last - sampled, -20, 20)
    return float(np.mean(np.exp(ratio) - 1 - ratio))


PLUGIN = Template
