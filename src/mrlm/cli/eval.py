"""`mrlm eval`: plays held-out tasks with a model and reports success rates, with intervals."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrlm.cli._options import app_sections, check_targets, config_to_play, recorded_at, write_json
from mrlm.core.progress import aligned, counted

if TYPE_CHECKING:
    from mrlm.core.episodes import Episode

EPISODES = 64
"""Held-out tasks where neither the command nor the config sets a number."""


def eval(
    overrides: list[str] | None = None,
    config: Path | None = None,
    model: str | None = None,
    environment: list[str] | None = None,
    num_episodes: int | None = None,
    samples: int | None = None,
    greedy: bool | None = None,
    success: float = 1.0,
    output: Path | None = None,
    record: Path | None = None,
    app: str | None = None,
    reward: str | None = None,
    data: str | None = None,
    agents: str | None = None,
    quiet: bool = False,
) -> None:
    """Evaluate the agents of an experiment on held-out tasks."""
    from mrlm.core.errors import ConfigError
    from mrlm.core.statistics import summarize
    from mrlm.record.redaction import redacted, secrets
    from mrlm.record.rows import finite
    from mrlm.runs import evaluate_model

    played = [*(environment or ()), *app_sections(app, reward, data, agents)]
    loaded = config_to_play(config, overrides, model, played)
    section = loaded.evaluation
    plays = samples or section.samples
    chosen = (section.greedy and plays == 1) if greedy is None else greedy
    if chosen and plays > 1:
        raise ConfigError("--samples above 1 needs --sampled: greedy episodes are all the same")
    check_targets(output, record)
    count = num_episodes or section.episodes or EPISODES
    result = evaluate_model(loaded, count, plays, chosen, record)
    rewards = _rewards(result.episodes).items()
    summaries = {name: summarize([*tasks.values()], plays, success) for name, tasks in rewards}
    failed = sum(episode.failed for episode in result.episodes)
    how = "greedy" if chosen else "sampled"
    print(table(summaries))
    print(
        f"{counted(len(result.episodes), 'episode')}, {how}, {failed} failed; "
        f"an episode passes with a reward of at least {success:g}; intervals are over tasks"
    )
    if record is not None and not quiet:
        print(recorded_at(record))
    if output is not None:
        report = {
            "environments": summaries,
            "metrics": {name: finite(value) for name, value in result.metrics.items()},
            "episodes": [_row(episode) for episode in result.episodes],
            "samples": plays,
            "greedy": chosen,
            "success": success,
            "config": loaded.resolved(),
        }
        write_json(output, redacted(report, secrets()))


def _rewards(episodes: "Sequence[Episode]") -> dict[str, dict[str, list[float]]]:
    """Environment -> task -> the rewards of its episodes that did not fail."""
    environments: dict[str, dict[str, list[float]]] = {}
    for episode in episodes:
        tasks = environments.setdefault(episode.environment, {}).setdefault(episode.task.id, [])
        if not episode.failed:
            tasks.append(episode.reward)
    return environments


def table(summaries: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The measures of every environment and their intervals, in aligned columns."""
    rows: list[Sequence[str]] = [("environment", "measure", "value", "95 % interval", "tasks")]
    for name, summary in summaries.items():
        for title, row in summary.items():
            value, low, high = (_shown(row[key]) for key in ("value", "low", "high"))
            rows.append((name, title, value, f"{low} .. {high}", str(row["tasks"])))
    return aligned(rows)


def _shown(number: float | None) -> str:
    return "-" if number is None else f"{number:.3f}"


def _row(episode: "Episode") -> dict[str, Any]:
    from mrlm.core.messages import write_message
    from mrlm.training.metrics import component_sums

    rollouts = episode.rollouts.items()
    return {
        "id": episode.id,
        "environment": episode.environment,
        "task_id": episode.task.id,
        "reward": None if episode.failed else episode.reward,
        "agents": {name: rollout.reward for name, rollout in rollouts},
        "components": component_sums(episode),
        "messages": {name: [*map(write_message, rollout.messages)] for name, rollout in rollouts},
        "status": episode.status,
        "error": episode.error,
    }
