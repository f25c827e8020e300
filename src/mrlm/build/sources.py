"""Builds the source of a run's groups from a config: rollouts, rows, or both."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mrlm.build.async_play import surplus_of
from mrlm.build.opponents import others_of
from mrlm.build.policies import LiveObjects, PlayPlan
from mrlm.build.run_plan import Data, RunPlan
from mrlm.config import ExperimentConfig, TrainingConfig
from mrlm.config.errors import InvalidConfig, Problem
from mrlm.core.errors import ConfigError
from mrlm.core.progress import counted
from mrlm.data.forms import training_row
from mrlm.data.tasks import Reading
from mrlm.learn.bases.spec import Spec
from mrlm.play.agent import AgentSettings
from mrlm.play.engine import Engine
from mrlm.play.sources.ahead import Ahead
from mrlm.play.sources.collected import Collected
from mrlm.play.sources.play import AssignOpponents, Play
from mrlm.play.sources.replays import PlayWithReplays
from mrlm.play.sources.rows import Grouping, RowSource
from mrlm.play.sources.self_play_pairs import SelfPlayPairs
from mrlm.play.sources.source import EpisodeSource
from mrlm.play.sources.streaming import StreamedRows
from mrlm.record.plan import SAMPLED_GROUPS


def rows_of(config: ExperimentConfig, parts: LiveObjects, spec: Spec) -> Data | None:
    """The rows a run trains on, or a reader of them; `None` if it trains on none. Raises
    `ConfigError`: they cannot be streamed here; `DataError`: they cannot be read."""
    section = config.data
    source = parts.rows if parts.rows is not None else section.dataset
    if source is None:
        return None
    reading = Reading(
        source,
        split=section.split,
        columns=section.columns,
        on_bad_row=section.on_bad_row,
        max_rows=section.max_rows,
        convert=partial(training_row, pairs=spec.sampling.pairs),
        streaming=section.streaming,
    )
    if not section.streaming:
        return list(reading)
    if spec.sampling.rounds is not None:
        raise ConfigError(
            f"data.streaming: {config.training.algorithm} passes over all rows in every round and "
            "needs their number; remove it"
        )
    if config.training.num_iterations is None:
        raise ConfigError(
            "data.streaming: streamed rows are not counted, so the length of an epoch is "
            "unknown; set training.num_iterations"
        )
    next(iter(reading))
    return reading


def play_of(
    plan: PlayPlan,
    settings_of: Mapping[str, AgentSettings],
    engines: Mapping[str, Engine],
    kind: Callable[..., Play] = Play,
    group_size: int = 1,
    **how: Any,
) -> Play:
    """A `Play` of the plan's environments, of a `kind`; the other arguments are those of `Play`."""
    config, who = plan.config, (plan.environments, settings_of, engines)
    how |= {"peers": plan.peers.channel(), "boards": config.record.tokens != "none"}
    return kind(*who, group_size, config.training.seed, config.engine.timeout, **how)


def source_of(
    plan: RunPlan,
    settings_of: Mapping[str, AgentSettings],
    engines: Mapping[str, Engine],
    assign_opponents: AssignOpponents | None,
) -> EpisodeSource:
    """The source of the loop's groups, by the settings of every agent and the engine of every
    policy; `assign_opponents` chooses the agents of a training task, where these vary."""
    config, spec, rows = plan.config, plan.spec, plan.rows
    if rows is not None:
        source = config.data.dataset
        where = f"data.dataset={source!r}" if isinstance(source, str) else "the data set"
        grouping = Grouping(settings_of, spec.sampling.pairs, where, config.data.on_long_row)
        seed, shuffle = config.training.seed, config.data.shuffle
        if isinstance(rows, Reading):
            return StreamedRows(rows, grouping, seed, config.data.shuffle_buffer if shuffle else 1)
        row_source = RowSource(rows, grouping, seed, shuffle)
        if spec.sampling.rounds is None:
            return row_source
        rounds = spec.sampling.rounds.over(len(rows), config.training.batch_size)
        how = rounds, seed, config.engine.timeout, plan.peers.channel()
        return SelfPlayPairs(row_source, settings_of, engines, *how)
    collecting = spec.sampling.collection
    if collecting is not None:
        in_order = collecting.every == 1 and collecting.min_reward is None
        boards = _most_boards(plan) if in_order else None
        how = {"demonstrate": collecting.demonstrate, "most_boards": boards}
        play, training = play_of(plan, settings_of, engines, **how), config.training
        return Collected(play, training.batch_size, collecting.every, collecting.min_reward)
    replays = spec.sampling.replays
    play = play_of(
        plan,
        settings_of,
        engines,
        Play if replays is None else partial(PlayWithReplays, replays=replays),
        group_size=plan.algorithm.group_size,
        watched=spec.critic.of_team,
        greedy=spec.sampling.greedy,
        surplus=surplus_of(plan),
        assign_opponents=assign_opponents or others_of(plan),
        most_boards=_most_boards(plan),
    )
    if not config.training.max_lag:
        return play
    training = config.training
    return Ahead(play, training.max_lag, training.batch_size, config.asynchrony.partial)


def _most_boards(plan: RunPlan) -> int | None:
    """Groups of a step whose boards can be recorded, where the numbers of groups in the record are
    those in which they are played; `None` for all."""
    spec, config = plan.spec, plan.config
    in_order = not (spec.sampling.refills or spec.sampling.replays or config.training.max_lag)
    return SAMPLED_GROUPS if in_order and config.record.tokens == "sample" else None


def amount(plan: RunPlan, turns: int | None, total: int) -> str:
    """How much a step of a run samples or reads, in words; `turns` as in `RunFacts`."""
    tasks, spec = plan.config.training.batch_size, plan.spec
    if plan.rows is not None or spec.sampling.rows:
        text = f"{counted(tasks, 'pair' if spec.sampling.pairs else 'row')} a step"
    else:
        agents, samples = len(plan.assignment.policy_of), plan.algorithm.group_size
        single = turns == 1 and agents == 1
        first, last = ("prompt", "completion") if single else ("task", "episode")
        text = f"{counted(tasks, first)} x {counted(samples, 'sample')} = "
        text += f"{counted(tasks * samples, last)} a step"
        if not single:
            text += f", {counted(agents, 'agent')}"
    parts = plan.algorithm.num_minibatches * plan.algorithm.update_epochs
    step_text = "" if parts == 1 else f" of up to {parts} optimiser steps"
    return f"{text}, {counted(total, 'step')}{step_text}"


def total_steps(training: TrainingConfig, spec: Spec, tasks: int | None) -> int:
    """Iterations of a run over `tasks` tasks (`None`: endless): as many as are configured, else
    enough for the epochs; with endless tasks an epoch is one iteration, in an outer loop it is a
    round. Raises `ConfigError`: part of either."""
    if training.num_iterations is not None:
        return training.num_iterations
    rounds, epochs = spec.sampling.rounds, training.num_epochs
    if epochs % 1 and (tasks is None or rounds is not None):
        unit = "iterations" if rounds is None else "rounds"
        text = f"{epochs:g} is not a whole number of {unit}; use {math.ceil(epochs)}"
        raise InvalidConfig([Problem("training.num_epochs", text)])
    if tasks and rounds is not None:
        return rounds.over(tasks, training.batch_size).total(int(epochs))
    per_epoch = 1 if tasks is None else math.ceil(tasks / training.batch_size)
    return math.ceil(epochs * per_epoch)
