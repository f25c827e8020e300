"""The facts of a card: how a team was trained, and how it was evaluated, read from its run."""

import ast
import inspect
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrlm.core import registry
from mrlm.core.statistics import mean_interval
from mrlm.doctor.alarm import alarms_in
from mrlm.record.reader import RecordedEpisode, RecordedRun
from mrlm.record.rows import finite
from mrlm.selfplay.opponent_pool import RATINGS
from mrlm.teams.public import public
from mrlm.training.run import Run

PAPER = re.compile(r"^- \*\*Paper\*\* (.+?)(?=^- |\Z)", re.MULTILINE | re.DOTALL)
ARXIV = re.compile(r"\b\d{4}\.\d{4,5}\b")


def facts_of(run: Run) -> dict[str, Any]:
    """The facts of a run, as plain data without secrets and paths of this machine."""
    config, training = run.config, run.config.training
    rate = training.learning_rate
    facts: dict[str, Any] = {
        "algorithm": algorithm_facts(training.algorithm),
        "steps": run.step,
        "tokens": run.tokens,
        "seed": training.seed,
        "batch_size": training.batch_size,
        "group_size": run.algorithm.group_size,
        "learning_rate": run.algorithm.learning_rate if rate is None else rate,
        "origins": {name: item.get("model", "") for name, item in run.team["policies"].items()},
        "trained": [learner.policy for learner in run.learners],
        "dataset": config.data.dataset if isinstance(config.data.dataset, str) else None,
        "evaluation": evaluation_facts(run.folder),
        "ratings": _ratings(run.folder),
        "doctor": training.doctor,
        "rules": list(run.log.rules_ready),
        "alarms": [
            {"rule": item.rule, "step": item.step, "because": item.because}
            | {"about": item.agent or item.policy}
            for item in alarms_in(run.folder)
        ],
    }
    return public(facts)


def algorithm_facts(name: str) -> dict[str, Any]:
    """An algorithm's name, first sentence and papers (numbers on arXiv), from its docstring."""
    if ":" in name:
        plugin = registry.load("algorithms", name)
        text = inspect.getdoc(sys.modules[plugin.__module__]) or ""
    else:
        source = registry.files("algorithms")[name].read_text(encoding="utf-8")
        text = ast.get_docstring(ast.parse(source)) or ""
    paper = PAPER.search(text)
    about = " ".join(text.split("\n\n")[0].split())
    papers = ARXIV.findall(paper[1]) if paper else []
    reference = " ".join(paper[1].split()) if paper else ""
    return {"name": name, "about": about, "paper": reference, "arxiv": list(dict.fromkeys(papers))}


def evaluation_facts(folder: Path) -> dict[str, Any]:
    """The latest evaluation in the record of a run: means over tasks of the reward of the team in
    every environment, and of each agent, with 95 % intervals. Empty without one."""
    recorded = RecordedRun(folder)
    step = max((part.step for part in recorded.parts if part.evaluation), default=None)
    if step is None:
        return {}
    rewards: dict[tuple[str, str | None], dict[str, list[float]]] = {}
    failed = 0
    for episode in recorded.episodes([step]):
        if not episode.evaluation:
            continue
        failed += episode.row["status"] == "error"
        for agent, reward in _rewards(episode).items():
            tasks = rewards.setdefault((episode.row["environment"], agent), {})
            tasks.setdefault(episode.row["task_id"], []).append(reward)
    rows = []
    for (environment, agent), tasks in rewards.items():
        means = [sum(task_rewards) / len(task_rewards) for task_rewards in tasks.values()]
        value, low, high = map(finite, mean_interval(means))
        row = {"environment": environment, "agent": agent, "value": value, "low": low, "high": high}
        rows.append(row | {"tasks": len(tasks)})
    return {"step": step, "rows": rows, "failed": failed}


def _rewards(episode: RecordedEpisode) -> dict[str | None, float]:
    """Agent (`None`: the team) -> its reward; empty for a failed episode."""
    if episode.row["status"] == "error" or episode.reward is None:
        return {}
    agents: Mapping[str, Any] = episode.row["agents"]
    rewards: dict[str | None, float] = {None: episode.reward}
    if len(agents) > 1:
        agent_rewards = {name: agent_row["reward"] for name, agent_row in agents.items()}
        rewards |= {name: reward for name, reward in agent_rewards.items() if reward is not None}
    return rewards


def _ratings(folder: Path) -> list[dict[str, Any]]:
    file = folder / RATINGS
    if not file.is_file():
        return []
    return json.loads(file.read_text(encoding="utf-8"))["players"]
