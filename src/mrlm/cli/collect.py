"""`mrlm collect`: play episodes and keep the trajectories, as rows for supervised learning."""

from pathlib import Path

from mrlm.cli._options import check_targets, config_to_play, recorded_at, write_json
from mrlm.core.progress import counted


def collect(
    output: Path,
    overrides: list[str] | None = None,
    config: Path | None = None,
    model: str | None = None,
    environment: list[str] | None = None,
    num_episodes: int = 64,
    filter_reward: float | None = None,
    record: Path | None = None,
    quiet: bool = False,
) -> None:
    """Play episodes with the agents of an experiment and write the conversations to a file."""
    from mrlm.core.messages import write_message
    from mrlm.record.redaction import redacted, secrets
    from mrlm.runs import collect_trajectories
    from mrlm.training.metrics import component_sums

    loaded = config_to_play(config, overrides, model, environment)
    check_targets(output, record)
    episodes = collect_trajectories(loaded, num_episodes, record)
    rows = [
        {
            "episode": episode.id,
            "messages": [write_message(message) for message in rollout.messages],
            "agent": name,
            "reward": rollout.reward,
            "components": component_sums(episode).get(name, {}),
            "environment": episode.environment,
            "task_id": episode.task.id,
            "status": episode.status,
        }
        for episode in episodes
        if not episode.failed
        for name, rollout in episode.rollouts.items()
    ]
    selected = [row for row in rows if filter_reward is None or row["reward"] >= filter_reward]
    write_json(output, redacted(selected, secrets()))
    failed = sum(episode.failed for episode in episodes)
    print(
        f"{len(selected)} of {counted(len(rows), 'rollout')} written to {output} "
        f"({counted(len(episodes), 'episode')}, {failed} of them failed and left out)"
    )
    if record is not None and not quiet:
        print(recorded_at(record))
