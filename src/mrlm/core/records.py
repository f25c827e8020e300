"""Episodes as plain data, for checkpoints: everything a gradient needs, no live object."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mrlm.core.episodes import Episode
from mrlm.core.types import Message, Role, Rollout, SamplingParams, Task, Turn


def episode_record(episode: Episode) -> dict[str, Any]:
    """A JSON-serialisable record of an episode, without credit columns, which are recomputed."""
    return {
        "id": episode.id,
        "task": episode.task.id,
        "reward": episode.reward,
        "step_rewards": episode.step_rewards,
        "status": episode.status,
        "environment": episode.environment,
        "path": list(episode.path),
        "metrics": episode.metrics,
        "policies": episode.policies,
        "missing": sorted(episode.missing),
        "rollouts": {name: _rollout_record(rollout) for name, rollout in episode.rollouts.items()},
    }


def episode_of(record: dict[str, Any]) -> Episode:
    """Inverse of `episode_record`."""
    rollouts = {name: _rollout_of(rollout) for name, rollout in record["rollouts"].items()}
    return Episode(
        id=record["id"],
        task=Task(record["task"]),
        rollouts=rollouts,
        reward=record["reward"],
        step_rewards=list(record["step_rewards"]),
        status=record["status"],
        environment=record["environment"],
        path=tuple(record["path"]),
        metrics=dict(record.get("metrics", {})),
        policies=dict(record.get("policies", {})),
        missing=frozenset(record.get("missing", ())),
    )


def message_record(message: Message) -> dict[str, Any]:
    """A message as in a data set row."""
    return {"role": str(message.role), "content": message.content, "agent": message.agent}


_TURN = ("agent", "policy", "prompt_ids", "completion_ids", "logprobs", "reward", "step", "index")
_TURN_MORE = (
    "node",
    "version",
    "finish_reason",
    "trained",
    "components",
    "opening",
    "order",
)


def _rollout_record(rollout: Rollout) -> dict[str, Any]:
    return {
        "agent": rollout.agent,
        "policy": rollout.policy,
        "task_id": rollout.task_id,
        "tail_ids": rollout.tail_ids,
        "rewritten": rollout.rewritten,
        "messages": [message_record(message) for message in rollout.messages],
        "turns": [
            {name: getattr(turn, name) for name in (*_TURN, *_TURN_MORE)}
            | {
                "text": turn.message.content if turn.message else "",
                "sampling": asdict(turn.sampling),
            }
            for turn in rollout.turns
        ],
    }


def _rollout_of(record: dict[str, Any]) -> Rollout:
    turns = []
    for fields in record["turns"]:
        values = {name: fields[name] for name in (*_TURN, *_TURN_MORE)}
        sampling = fields["sampling"] | {"stop": tuple(fields["sampling"]["stop"])}
        turn = Turn(**values, sampling=SamplingParams(**sampling))
        turn.message = Message(fields["text"], Role.ASSISTANT, agent=turn.agent, turn=turn)
        turns.append(turn)
    messages = [
        Message(m["content"], Role(m["role"]), agent=m["agent"]) for m in record["messages"]
    ]
    return Rollout(
        agent=record["agent"],
        policy=record["policy"],
        task_id=record["task_id"],
        turns=turns,
        messages=messages,
        tail_ids=list(record["tail_ids"]),
        rewritten=record.get("rewritten", False),
    )
