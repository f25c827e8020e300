"""Metrics of episodes under the field's names, for the team, each agent and each environment."""

from collections.abc import Mapping, Sequence

import numpy as np

from mrlm.core.episodes import Episode, Group
from mrlm.core.owners import owners_of, role_of
from mrlm.core.types import Turn
from mrlm.learn.agent_numbers import PEAKS
from mrlm.learn.credit.groups import is_trained, trained_turns
from mrlm.learn.data.batch import joined
from mrlm.learn.data.samples import has_advantage
from mrlm.play.engine import Engine, RemoteEngine


def episode_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Metrics of a step's episodes: `reward/mean` is the team's, `reward/<agent>/mean` each
    agent's; failed episodes are counted and otherwise left out. Greedy baselines, replays, and
    episodes that ended because a sibling continued are ignored. Missing rewards are in no mean; if
    there are any, `reward/missing` counts them, one per agent and episode."""
    everything = [item for group in groups for item in group if item.replayed is None]
    episodes = [item for item in everything if not item.greedy and not item.pruned]
    valid = [episode for episode in episodes if not episode.failed]
    metrics = {
        "episodes/failed": _share([episode.failed for episode in episodes]),
        "episodes/truncated": _share([episode.status == "truncated" for episode in episodes]),
        "episodes/count": float(len(episodes)),
    }
    if not valid:
        return metrics
    incomplete = [episode for episode in valid if episode.missing]
    missing = sum(len(episode.missing & episode.rollouts.keys()) for episode in incomplete)
    if missing:
        metrics["reward/missing"] = float(missing)
    scored = [episode for episode in valid if episode.scored]
    if scored:
        rewards = np.array([episode.reward for episode in scored])
        metrics |= {"reward/mean": float(np.mean(rewards)), "reward/std": float(np.std(rewards))}
    names = sorted({episode.environment for episode in scored})
    for name in names if len(names) > 1 else ():
        rewards = [episode.reward for episode in scored if episode.environment == name]
        metrics[f"{name}/reward/mean"] = float(np.mean(rewards))
    agents = sorted({role_of(agent) for episode in valid for agent in episode.rollouts})
    turns = [turn for episode in valid for turn in episode.turns]
    written = [turn for turn in turns if turn.completion_ids]
    if written:
        lengths = [len(turn.completion_ids) for turn in written]
        metrics["completion_length/mean"] = sum(lengths) / len(lengths)
        metrics["completion_length/max"] = float(max(lengths))
        stopped = [turn.finish_reason == "length" for turn in written]
        metrics["completion_length/cut"] = _share(stopped)
    metrics["turns/mean"] = len(turns) / len(valid)
    for agent in agents:
        acted = [
            (name in item.missing, rollout)
            for item in valid
            for name, rollout in item.rollouts.items()
            if role_of(name) == agent
        ]
        agent_rewards = [rollout.reward for missing, rollout in acted if not missing]
        if agent_rewards:
            metrics[f"reward/{agent}/mean"] = float(np.mean(agent_rewards))
        completions = (turn.completion_ids for _, rollout in acted for turn in rollout.turns)
        lengths = [len(ids) for ids in completions if ids]
        if lengths and len(agents) > 1:
            metrics[f"completion_length/{agent}/mean"] = sum(lengths) / len(lengths)
    reported: dict[str, set[str]] = {}
    for episode in valid:
        for name in episode.metrics:
            reported.setdefault(name, set()).add(episode.environment)
    for name, environments in sorted(reported.items()):
        values = [e.metrics.get(name, 0.0) for e in valid if e.environment in environments]
        metrics[f"reward/{name}"] = float(np.mean(values))
    return metrics


def credit_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Metrics of credit: mean and spread of each agent's advantages, the share of its trained turns
    with advantage 0 (`advantage/<agent>/zero`; at 1 nothing is trained), and its share of the
    trained tokens. With several agents also over all trained tokens (`advantage/mean`), and with
    several policies of each (`advantage/<policy>/mean`); the agent's keep a name that both have."""
    agents: dict[str, list[Turn]] = {}
    policies: dict[str, list[Turn]] = {}
    episodes = (each for group in groups for each in [*group.valid, *group.replays])
    for turn in (turn for episode in episodes for turn in episode.turns):
        if turn.advantages is not None and is_trained(turn):
            agents.setdefault(turn.role, []).append(turn)
            policies.setdefault(turn.policy, []).append(turn)
    tokens = {agent: sum(map(len, turns)) for agent, turns in agents.items()}
    metrics: dict[str, float] = {"tokens/trained": float(sum(tokens.values()))}
    for agent, turns in agents.items():
        metrics |= _spread(f"/{agent}", turns)
        if len(agents) > 1:
            metrics[f"tokens/{agent}/share"] = tokens[agent] / sum(tokens.values())
    if len(agents) > 1:
        metrics |= _spread("", [turn for turns in policies.values() for turn in turns])
    for name, turns in policies.items() if len(agents) > 1 and len(policies) > 1 else ():
        metrics |= {} if name in agents else _spread(f"/{name}", turns)
    return metrics


def _spread(suffix: str, turns: Sequence[Turn]) -> dict[str, float]:
    """Mean, deviation and share of zeros of the advantages of turns."""
    lengths = [len(turn.completion_ids) for turn in turns]
    column = joined([turn.advantages for turn in turns], lengths)
    return {
        f"advantage{suffix}/mean": float(column.mean()),
        f"advantage{suffix}/std": float(column.std()),
        f"advantage{suffix}/zero": _share([not has_advantage(turn) for turn in turns]),
    }


def distinct_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """`distinct_completions`: the share of an agent's rollouts in a group with different tokens,
    averaged over groups with several; also by policy and by agent. At `1 / group_size` all siblings
    answer the same."""
    shares: dict[str, list[float]] = {}
    policies: dict[str, str] = {}
    for group in groups:
        rollouts: dict[str, list[tuple[tuple[int, ...], ...]]] = {}
        for episode in group.valid:
            for agent, rollout in episode.rollouts.items():
                turns = trained_turns(rollout)
                if turns and not (episode.greedy or episode.pruned):
                    agent = role_of(agent)
                    policies.setdefault(agent, turns[0].policy)
                    completions = tuple([tuple(turn.completion_ids) for turn in turns])
                    rollouts.setdefault(agent, []).append(completions)
        for agent, several in rollouts.items():
            if len(several) > 1:
                shares.setdefault(agent, []).append(len(set(several)) / len(several))
    if not shares:
        return {}
    rows = {"": set(shares)} | owners_of({agent: policies[agent] for agent in shares})
    return {
        f"distinct_completions{suffix}": float(np.mean([x for a in sorted(row) for x in shares[a]]))
        for suffix, row in rows.items()
    }


def api_metrics(engines: Mapping[str, Engine]) -> dict[str, float]:
    """Requests, tokens and cost of policies behind an API since the last call, as
    `api/<policy>/<name>`."""
    return {
        f"api/{policy}/{name}": value
        for policy, engine in remote_engines(engines).items()
        for name, value in engine.take_usage().items()
    }


def remote_engines(engines: Mapping[str, Engine]) -> dict[str, RemoteEngine]:
    """policy -> its engine, for policies behind an API."""
    by_id = {id(engine): engine for engine in engines.values()}  # many policies may share one
    remote = {key: engine for key, engine in by_id.items() if isinstance(engine, RemoteEngine)}
    return {name: remote[id(engine)] for name, engine in engines.items() if id(engine) in remote}


def by_policy(updates: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Metrics of the learners' updates: under their plain names for one policy; for several under
    `<name>/<policy>` too, the plain name being the mean (of `ratio_max` the maximum)."""
    if len(updates) == 1:
        return dict(next(iter(updates.values())))
    metrics: dict[str, float] = {}
    for name in sorted({name for update in updates.values() for name in update}):
        numbers = {policy: update[name] for policy, update in updates.items() if name in update}
        whole = np.max if name in PEAKS.values() else np.mean
        metrics[name] = float(whole(list(numbers.values())))
        metrics |= {f"{name}/{policy}": value for policy, value in numbers.items()}
    return metrics


def component_sums(episode: Episode) -> dict[str, dict[str, float]]:
    """agent -> the components of its rewards in an episode, by name."""
    sums: dict[str, dict[str, float]] = {}
    for turn in episode.turns:
        agent_sums = sums.setdefault(turn.agent, {})
        for name, value in turn.components.items():
            agent_sums[name] = agent_sums.get(name, 0.0) + value
    return sums


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0
