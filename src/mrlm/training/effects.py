"""The influence of messages on the agents that read them, and the effects of agents as metrics of
an evaluation: its episodes are replayed with messages left empty."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.timing import span
from mrlm.core.types import Turn
from mrlm.learn import ops
from mrlm.learn.data.batch import merge, pack
from mrlm.learn.policy.policy import Policy
from mrlm.play.sources.branches import Branches, EpisodePlace, Past, Script, TurnPlace, past_of
from mrlm.training.run import Run

log = logging.getLogger(__name__)

MOST_TASKS = 8
"""Tasks of an evaluation that are replayed at most, where it is not set."""
READ = 128
"""Tokens of a turn of which an evaluation measures the influence at most."""


def influence(policy: Policy, turn: Turn, without: Sequence[int]) -> float:
    """The divergence `KL(p || q)` of the next agent's distribution, in nats per token of its turn:
    p with the message in its prompt, and q without it. Both passes read the completion of the turn
    (the causal influence of arXiv 1810.08647, with silence as the counterfactual message).

    Args:
        policy: the policy of the turn.
        turn: the recorded turn of the next agent.
        without: its prompt without the message.
    """
    if list(turn.prompt_ids) == list(without):
        return 0.0
    both = [replace(turn, trained=True), replace(turn, prompt_ids=list(without), trained=True)]
    with policy.scoring():
        p, q = (
            policy.logits(pack(merge([variant]), pad_id=policy.pad_id, device=policy.device))
            for variant in both
        )
        return float(ops.full_kl(p, q).mean())


def readers(episode: Episode, agent: str, index: int) -> list[Turn]:
    """The next turn of every other agent after a turn of `agent`."""
    turns = sorted(episode.turns, key=lambda turn: (turn.step, turn.order))
    (sender,) = (turn for turn in turns if (turn.agent, turn.index) == (agent, index))
    next_turns: dict[str, Turn] = {}
    for turn in turns:
        if turn.agent != agent and (turn.step, turn.order) > (sender.step, sender.order):
            next_turns.setdefault(turn.agent, turn)
    return list(next_turns.values())


def influences(
    episode: Episode,
    silent: Episode,
    position: TurnPlace,
    past: Past,
    policies: Mapping[str, Policy],
    most: int | None = None,
) -> dict[str, float | None]:
    """The influence of a message on the next turn of every other agent.

    Args:
        silent: its branch in which the message is empty.
        position: the turn of the message.
        past: the turns of the episode.
        policies: the policies with weights here.
        most: tokens of a turn that are read; all by default.

    Returns:
        Next agent -> the influence; `None` where its policy has no weights here, or it did not act
        in the branch.
    """
    by_agent: dict[str, float | None] = {}
    without = {(turn.agent, turn.index): turn for turn in silent.turns}
    for turn in readers(episode, *position):
        other, was = without.get((turn.agent, turn.index)), past.get((turn.agent, turn.index))
        policy = policies.get(turn.policy)
        if other is None or was is None or policy is None or not other.prompt_ids:
            by_agent[turn.agent] = None
            continue
        recorded = replace(
            turn, prompt_ids=list(was.asked), completion_ids=was.completion.token_ids[:most]
        )
        by_agent[turn.agent] = influence(policy, recorded, other.prompt_ids)
    return by_agent


# -- metrics of an evaluation ---------------------------------------------------------------------


async def effect_metrics(run: Run, groups: Sequence[Group]) -> dict[str, float]:
    """Metrics of the first tasks of an evaluation: `marginal/<agent>`, the team's reward minus
    that with all messages of the agent empty; `influence/<agent>/<other>`, the divergence of the
    other agent's next turn without a message of the agent, in nats per token of its first `READ`;
    and `changed/<agent>/<other>`, the share of these turns with another text without it. Means over
    tasks and messages; failed episodes and branches are left out. There are `evaluation.effects`
    tasks, or those that cost little (`EvaluationConfig.replays`).

    Args:
        groups: of the evaluation, played with the current policies.
    """
    section = run.config.evaluation
    count = section.effects
    if count is None and not run.measures_effects:
        return {}
    episodes = [item for group in groups[:count] for item in group.valid[:1] if item.scored]
    if count is None:
        trained = run.config.training.batch_size * run.algorithm.group_size
        scripts = [(item, *_scripts(past_of(item))) for item in episodes[:MOST_TASKS]]
        read = [(item, len(agents) + len(turns)) for item, agents, turns in scripts if turns]
        totals = np.cumsum([number for _, number in read])
        number = int(np.sum(totals <= section.replays(run.total_steps, trained)))
        episodes = [item for item, _ in read[:number]]
    policies = {item.policy: item.weights_of for item in [*run.learners, *run.frozen]}
    by_name: dict[str, list[float]] = {}
    try:
        with span("evaluation"):
            values = await asyncio.gather(*(_effects(run, each, policies) for each in episodes))
    except ConfigError as error:
        if count is not None:
            raise
        run.measures_effects = False
        log.warning("the effects of agents are not measured any more: %s", error)
        return {}
    for name, value in (pair for pairs in values for pair in pairs):
        by_name.setdefault(name, []).append(value)
    return {name: float(np.mean(values)) for name, values in by_name.items()}


def _scripts(past: Past) -> tuple[list[str], list[TurnPlace]]:
    """The agents of an episode, and the turns that another agent may have read."""
    later = {position: [q for q in past if past[q].when > past[position].when] for position in past}
    messages = [p for p in past if any(other[0] != p[0] for other in later[p])]
    return list(dict.fromkeys(agent for agent, _ in past)), messages


async def _effects(
    run: Run, episode: Episode, policies: Mapping[str, Policy]
) -> list[tuple[str, float]]:
    """Names and values of the metrics in one episode."""
    past = past_of(episode)
    agents, messages = _scripts(past)
    scripts = [Script(agents=frozenset([agent]), how="text") for agent in agents]
    scripts += [Script(turns=frozenset([position]), how="text") for position in messages]
    branches = await _branches(run, episode, past).branches(scripts)
    metrics = [
        (f"marginal/{agent}", episode.reward - branch.reward)
        for agent, branch in zip(agents, branches, strict=False)
        if not branch.failed and branch.scored
    ]
    for position, branch in zip(messages, branches[len(agents) :], strict=True):
        metrics += [
            (f"influence/{position[0]}/{other}", value)
            for other, value in influences(episode, branch, position, past, policies, READ).items()
            if value is not None
        ]
        silent = {(turn.agent, turn.index): turn for turn in branch.turns}
        metrics += [
            (f"changed/{position[0]}/{turn.agent}", float(_text(turn) != _text(other)))
            for turn in readers(episode, *position)
            if (other := silent.get((turn.agent, turn.index))) is not None
        ]
    return metrics


def _text(turn: Turn) -> str:
    return "" if turn.message is None else turn.message.content.strip()


def _branches(run: Run, episode: Episode, past: Past) -> Branches:
    """Plays branches of an episode of an evaluation with the current policies."""
    assert run.evaluator is not None
    config, environments = run.config, run.evaluator.environments
    return Branches(
        environments,
        run.evaluator.settings_of,
        run.engines,
        1,
        config.training.seed,
        config.engine.timeout,
        place=EpisodePlace.of(episode.id, environments),
        past=past,
        path=episode.path,
        calm=config.evaluation.greedy,
    )
