"""From a config to where the groups of a run come from: play, rows, or both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mrlm.build.async_play import ahead_of, surplus_of
from mrlm.build.policies import Parts
from mrlm.config import ExperimentConfig
from mrlm.core.errors import ConfigError
from mrlm.core.process_group import ALONE, Peers
from mrlm.data.tasks import Reading
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.play.agent import Seat
from mrlm.play.engine import Engine
from mrlm.play.sources.collected import Collected
from mrlm.play.sources.play import EpisodeSource, Play
from mrlm.play.sources.rows import RowSource
from mrlm.play.sources.self_play_pairs import Opposed
from mrlm.play.sources.streaming import Streamed
from mrlm.play.sources.task_sampler import WorldSpec

Data = list[dict[str, Any]] | Reading
"""The rows of a run, or how they are read while it goes on."""


def rows_of(config: ExperimentConfig, parts: Parts) -> Data | None:
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
    if config.algorithm_settings().rounds(1, 1) is not None:
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
    group_size: int,
    worlds: Sequence[WorldSpec],
    seats: Mapping[str, Seat],
    engines: Mapping[str, Engine],
    demonstrate: bool = False,
    watched: bool = False,
    greedy: bool = False,
    peers: Peers = ALONE,
    surplus: int = 0,
) -> Play:
    """Play with what the config says of it; arguments are those of `Play`."""
    return Play(
        worlds,
        seats,
        engines,
        group_size,
        config.training.seed,
        config.engine.timeout,
        demonstrate,
        watched,
        greedy,
        peers=peers.channel(),
        surplus=surplus,
    )


def source_of(
    config: ExperimentConfig,
    algorithm: Algorithm,
    worlds: Sequence[WorldSpec],
    rows: Data | None,
    seats: Mapping[str, Seat],
    engines: Mapping[str, Engine],
    peers: Peers,
) -> EpisodeSource:
    """Where the loop takes groups from.

    Args:
        config: one stage of an experiment.
        algorithm: that learns from them.
        worlds, rows: what is played, or learned from.
        seats, engines: who plays, and what samples for every policy.
        peers: the processes that share the tasks.
    """
    if rows is not None:
        source = config.data.dataset
        where = f"data.dataset={source!r}" if isinstance(source, str) else "the data set"
        pairs, seed = "pairs" in algorithm.requires, config.training.seed
        long = config.data.on_long_row
        if isinstance(rows, Reading):
            buffer = config.data.shuffle_buffer if config.data.shuffle else 1
            return Streamed(rows, seats, seed, buffer, pairs, where, long)
        found = RowSource(rows, seats, seed, config.data.shuffle, pairs, where, long)
        rounds = algorithm.rounds(len(rows), config.training.batch_size)
        if rounds is None:
            return found
        channel = peers.channel()
        return Opposed(found, seats, engines, rounds, seed, config.engine.timeout, channel)
    plan = algorithm.collection
    if plan is None:
        watched = algorithm.topology in ("central", "mixed")
        greedy = "greedy" in algorithm.requires
        size = algorithm.group_size
        more = surplus_of(config, size)
        play = play_of(config, size, worlds, seats, engines, False, watched, greedy, peers, more)
        return ahead_of(config, play)
    play = play_of(config, 1, worlds, seats, engines, demonstrate=plan.demonstrate, peers=peers)
    return Collected(play, config.training.batch_size, plan.every, plan.min_reward, plan.most)


def total_steps(config: ExperimentConfig, tasks: int | None) -> int:
    """Iterations of a run over `tasks` tasks (`None`: they never end): as many as are asked for,
    else enough for the epochs; where tasks never end an epoch is one iteration, in an outer loop it
    is a round."""
    training = config.training
    if training.num_iterations is not None:
        return training.num_iterations
    rounds = tasks and config.algorithm_settings().rounds(tasks, training.batch_size)
    if rounds:
        return rounds.total(training.num_epochs)
    per_epoch = 1 if tasks is None else math.ceil(tasks / training.batch_size)
    return training.num_epochs * per_epoch
