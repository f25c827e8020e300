"""The mask, the template or the stop token is wrong.

In the recorded tokens of the last steps completions that stopped do not end in one stop token, or
it is never trained while other tokens are; or completions contain marks of a template; or no
token is trained although episodes or pairs were chosen to train on; or engine and trainer
disagree at prompts of one shape (an agent, and the roles of the messages before it) and not at
others.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mrlm.doctor.alarm import Alarm, cited
from mrlm.doctor.history import History
from mrlm.doctor.progress import gained
from mrlm.doctor.rule import Rows, Rule, texts
from mrlm.doctor.tokens import TokenTurn, token_turns

MARKS = re.compile(r"<\|[^|<>\s]{1,40}\|>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>")
"""Control tokens of known templates, as text."""
CHOSEN_NONE = {
    "frac_dropped_pairs": 1.0,
    "frac_filtered": 1.0,
    "good_answers": 0.0,
    "num_groups_trained": 0.0,
    "episodes/failed": 1.0,
}
"""Metric -> its value where a step has nothing to train on, whatever the mask is."""


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

    def __call__(self, history: History, episodes: Rows) -> Iterator[Alarm]:
        since = self._untrained(history)
        if since is not None:
            yield Alarm(since, "no token is trained in 3 steps", evidence=cited(episodes))
            return
        turns = list(token_turns(episodes))
        for agent in history.agents:
            own = [turn for turn in turns if turn.agent == agent]
            policy = history.policies.get(agent)
            for found, because in (self._stop(own), self._marks(episodes, agent)):
                if found:
                    since = min(row["step"] for row in found)
                    yield Alarm(since, because, agent, policy, cited(found))
                    break
            else:
                yield from self._shapes(agent, policy, own)

    def _untrained(self, history: History) -> int | None:
        """The first of three steps in which no token was trained for no other reason."""
        steps, trained = history.known("tokens/trained", 3)
        if len(trained) < 3 or trained.any() or gained(history, 8):
            return None
        for name, none in CHOSEN_NONE.items():
            known, values = history.known(name, 3)
            if np.isin(steps, known[values == none]).any():
                return None
        return int(steps[0])

    def _stop(self, turns: Sequence[TokenTurn]) -> tuple[Rows, str]:
        stopped = [
            turn
            for turn in turns
            if turn.row["finish_reason"] == "stop" and not turn.row["sampling"].get("stop")
        ]
        if len(stopped) < self.turns:
            return [], ""
        last, count = Counter(int(turn.ids[-1]) for turn in stopped).most_common(1)[0]
        if count < self.even * len(stopped):
            return [t.episode for t in stopped], (
                f"completions that stopped end in different tokens (the most common one ends "
                f"{count / len(stopped):.0%}): the stop token is not among the trained ones"
            )
        closed = [turn.episode for turn in stopped if last in turn.prompt_end]
        if len(closed) >= self.most * len(stopped):
            return closed, (
                f"prompts end with the stop token (id {last}): the chat template opens no turn of "
                "the assistant"
            )
        credited = []
        for turn in stopped:
            advantages = turn.column("advantages")
            if advantages is not None and len(advantages) > 1 and advantages.any():
                credited.append((turn.episode, advantages))
        masked = [episode for episode, advantages in credited if not advantages[-1]]
        if len(credited) < self.turns or len(masked) < self.most * len(credited):
            return [], ""
        return masked, (
            f"the last token (id {last}) has advantage 0 in {len(masked)} of {len(credited)} "
            "completions whose other tokens have not: the policy does not learn to stop"
        )

    def _marks(self, episodes: Rows, agent: str) -> tuple[Rows, str]:
        own = [row for row in episodes if agent in row["agents"]]
        said = [(row, text) for row in own for text in texts(row, agent)]
        some = [(row, text) for row, text in said if "<" in text or "[" in text]
        marked = [(row, found[0]) for row, text in some if (found := MARKS.search(text))]
        if len(said) < self.turns or len(marked) < len(said) / 2:
            return [], ""
        return [row for row, _ in marked], (
            f"{len(marked)} of {len(said)} completions contain marks of a template, such as "
            f"{marked[-1][1]!r}: the engine does not stop there"
        )

    def _shapes(
        self, agent: str, policy: str | None, turns: Sequence[TokenTurn]
    ) -> Iterator[Alarm]:
        if len({turn.shape for turn in turns}) < 2:
            return
        gaps: dict[tuple[str, ...], list[tuple[TokenTurn, float]]] = defaultdict(list)
        for turn in turns:
            gap = _gap(turn)
            if gap is not None:
                gaps[turn.shape].append((turn, gap))
        means = {shape: float(np.median([g for _, g in found])) for shape, found in gaps.items()}
        for shape, mean in means.items():
            if mean > self.gap and min(means.values()) < self.gap / 10 and len(gaps[shape]) >= 4:
                rows = [turn.episode for turn, _ in gaps[shape]]
                because = (
                    f"engine and trainer differ by {mean:.2g} nats per token after messages of "
                    f"{', '.join(shape)}, and by {min(means.values()):.2g} after others"
                )
                yield Alarm(min(row["step"] for row in rows), because, agent, policy, cited(rows))
                return


def _gap(turn: TokenTurn) -> float | None:
    """Divergence of the sampler from the last pass of the update, in nats per token."""
    sampled, last = turn.column("logprobs"), turn.column("last_logprobs")
    if sampled is None or last is None or not len(sampled):
        return None
    ratio = np.clip(last - sampled, -20, 20)
    return float(np.mean(np.exp(ratio) - 1 - ratio))


PLUGIN = Template
