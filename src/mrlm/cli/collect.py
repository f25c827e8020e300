"""`mrlm collect`: play episodes and keep the trajectories, as rows for supervised learning."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from mrlm.cli._options import (
    ConfigFile,
    Model,
    Overrides,
    Quiet,
    Worlds,
    config_to_play,
    write_json,
)


def collect(
    output: Annotated[Path, typer.Option("--output", "-o", help="The JSON file to write.")],
    overrides: Overrides = None,
    config: ConfigFile = None,
    model: Model = None,
    environment: Worlds = None,
    num_episodes: Annotated[
        int, typer.Option("--num-episodes", "-n", min=1, help="Episodes to play.")
    ] = 64,
    filter_reward: Annotated[
        float | None, typer.Option(help="Keep only rollouts of at least this reward.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Play episodes with the agents of an experiment and write the conversations to a file."""
    from mrlm.core.records import message_record
    from mrlm.runs import collect_trajectories

    if quiet:
        logging.getLogger("mrlm").setLevel(logging.WARNING)
    loaded = config_to_play(config, overrides, model, environment)
    episodes = collect_trajectories(loaded, num_episodes)
    rows = [
        {
            "messages": [message_record(message) for message in rollout.messages],
            "agent": name,
            "reward": rollout.reward,
            "environment": episode.environment,
            "task_id": episode.task.id,
            "status": episode.status,
        }
        for episode in episodes
        if not episode.failed
        for name, rollout in episode.rollouts.items()
    ]
    kept = [row for row in rows if filter_reward is None or row["reward"] >= filter_reward]
    write_json(output, kept)
    failed = sum(episode.failed for episode in episodes)
    print(
        f"{len(kept)} of {len(rows)} rollouts written to {output} ({len(episodes)} episodes, "
        f"{failed} of them failed and left out)"
    )
