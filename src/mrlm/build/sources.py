"""From a config to where the groups of a run come from: play, rows, or both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mrlm.build.async_play import surplus_of
from mrlm.build.policies import LiveObjects
from mrlm.build.run_plan import Data, RunPlan
from mrlm.config import ExperimentConfig, TrainingConfig
from mrlm.core.errors import ConfigError
from mrlm.core.process_group import ALONE, Peers
from mrlm.data.tasks import Reading
from mrlm.learn.bases.spec import Spec
from mrlm.play.agent import AgentSettings
from mrlm.play.engine import Engine
from mrlm.play.sources.ahead import Ahead
from mrlm.play.sources.collected import Collected
from mrlm.play.sources.play import Play, Sit
from mrlm.play.sources.rows import Grouping, RowSource
from mrlm.play.sources.self_play_pairs import SelfPlayPairs
from mrlm.play.sources.source import EpisodeSource
from mrlm.play.sources.streaming import StreamedRows
from mrlm.play.sources.task_sampler import EnvironmentSpec


def rows_of(config: ExperimentConfig, parts: LiveObjects, spec: Spec) -> Data | None:
    """The rows a run learns from, read or ready to be; `None` if it learns from none.

    Raises:
        ConfigError: they cannot be read on the way here.
        DataError: they cannot be read.
    """
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
        streaming=section.streaming,
    )
    if not section.streaming:
        return list(reading)
    if spec.sampling.rounds is not None:
        raise ConfigError(
            f"data.streaming: {config.training.algorithm} goes over all rows in every round, so it "
            "needs to know them; remove it"
        )
    if config.training.num_iterations is None:
        raise ConfigError(
            "data.streaming: rows that are read on the way are not counted, so nobody knows how "
            "long an epoch is; set training.num_iterations"
        )
    next(iter(reading))
    return reading


def play_of(
    config: ExperimentConfig,
    worlds: Sequence[EnvironmentSpec],
    seats: Mapping[str, AgentSettings],
    engines: Mapping[str, Engine],
    peers: Peers = ALONE,
    group_size: int = 1,
    **how: Any,
) -> Play:
    """Play with what the config says of it; arguments are those of `Play`."""
    seed, timeout = config.training.seed, config.engine.timeout
    return Play(worlds, seats, engines, group_size, seed, timeout, peers=peers.channel(), **how)


def source_of(
    plan: RunPlan,
    worlds: Sequence[EnvironmentSpec],
    seats: Mapping[str, AgentSettings],
    engines: Mapping[str, Engine],
    peers: Peers,
    sit: Sit | None,
) -> EpisodeSource:
    """Where the loop takes groups from.

    Args:
        plan: of the run.
        worlds: those of the plan, ready to be played.
        seats, engines: who plays, and what samples for every policy.
        peers: the processes that share the tasks.
        sit: who plays a training task, where that is not always the same.
    """
    config, spec, rows = plan.config, plan.spec, plan.rows
    if rows is not None:
        source = config.data.dataset
        where = f"data.dataset={source!r}" if isinstance(source, str) else "the data set"
        grouping = Grouping(seats, spec.sampling.pairs, where, config.data.on_long_row)
        seed, shuffle = config.training.seed, config.data.shuffle
        if isinstance(rows, Reading):
            return StreamedRows(rows, grouping, seed, config.data.shuffle_buffer if shuffle else 1)
        found = RowSource(rows, grouping, seed, shuffle)
        if spec.sampling.rounds is None:
            return found
        rounds = spec.sampling.rounds.over(len(rows), config.training.batch_size)
        channel = peers.channel()
        return SelfPlayPairs(found, seats, engines, rounds, seed, config.engine.timeout, channel)
    given = (config, worlds, seats, engines, peers)
    asked = spec.sampling.collection
    if asked is not None:
        play = play_of(*given, demonstrate=asked.demonstrate)
        batch_size = config.training.batch_size
        return Collected(play, batch_size, asked.every, asked.min_reward, asked.most)
    play = play_of(
        *given,
        group_size=plan.algorithm.group_size,
        watched=spec.critic.of_team,
        greedy=spec.sampling.greedy,
        surplus=surplus_of(plan),
        sit=sit,
    )
    if not config.training.max_lag:
        return play
    training = config.training
    return Ahead(play, training.max_lag, training.batch_size, config.asynchrony.partial)


def total_steps(training: TrainingConfig, spec: Spec, tasks: int | None) -> int:
    """Iterations of a run over `tasks` tasks (`None`: they never end): as many as are asked for,
    else enough for the epochs; where tasks never end an epoch is one iteration, in an outer loop it
    is a round."""
    if training.num_iterations is not None:
        return training.num_iterations
    rounds = spec.sampling.rounds
    if tasks and rounds is not None:
        return rounds.over(tasks, training.batch_size).total(training.num_epochs)
    per_epoch = 1 if tasks is None else math.ceil(tasks / training.batch_size)
    return training.num_epochs * per_epoch
