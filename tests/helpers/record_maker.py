"""Run folders as the record's schema 2 describes them, of any size, without a model."""

import base64
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

WORDS = (
    *("the", " sum", " of", " all", " is", " 12", " so", " we", " add", " 7", " and", " carry"),
    *(" one", ";", " then", " answer", " =", " not", " 41", ".", "\n", " let", " me", " check"),
)
"""A vocabulary: token id -> text."""
PIECES = [word.encode() for word in WORDS]


def half(values: Any) -> str:
    return "f2:" + base64.b64encode(np.asarray(values, "<f2").tobytes()).decode()


def ids_of(values: Any) -> str:
    return "u2:" + base64.b64encode(np.asarray(values, "<u2").tobytes()).decode()


class RunMaker:
    """Writes a run of agents that speak in turn.

    Args:
        agents: their names; each has a policy of its name.
        texts: completions instead of random words, without tokens.
        length: mean number of tokens of a completion.
        turns: turns of an agent.
    """

    def __init__(
        self,
        agents: Sequence[str] = ("solver", "critic"),
        texts: Sequence[str] | None = None,
        length: int = 24,
        turns: int = 2,
        seed: int = 0,
    ) -> None:
        self.agents, self.texts, self.length, self.turns = agents, texts, length, turns
        self.rng, self.numbers, self.spoken = random.Random(seed), np.random.default_rng(seed), 0

    def write(self, folder: Path, steps: int, tasks: int, siblings: int, tests: int = 4) -> Path:
        """Write a run folder."""
        folder.mkdir(parents=True)
        policies = {name: {"trainable": True} for name in self.agents}
        config = {
            "training": {
                "algorithm": "magrpo",
                "num_iterations": steps,
                "batch_size": tasks,
                "learning_rate": 2e-5,
                "seed": 0,
            },
            "magrpo": {"group_size": siblings},
            "model": {"model_name_or_path": "mrlm/tiny", "lora": None},
            "policies": policies,
            "agents": {},
            "environments": [{"env_type": "sums"}],
            "workflow": {"name": "turns"},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        with (folder / "episodes.jsonl").open("w") as file:
            for step in range(steps):
                for group in range(tests if step % 5 == 0 else 0):
                    row = self.row(
                        step, f"eval/sums/{group}/0", group, f"test-{group}", step / steps
                    )
                    file.write(json.dumps(row) + "\n")
                for group in range(tasks):
                    made = [
                        self.row(
                            step,
                            f"train/sums/{step * tasks + group}/{k}",
                            group,
                            f"task-{group}",
                            step / steps,
                        )
                        for k in range(siblings)
                    ]
                    self.credit(made)
                    file.writelines(json.dumps(row) + "\n" for row in made)
        with (folder / "metrics.jsonl").open("w") as file:
            for step in range(steps):
                file.write(json.dumps(self.metrics(step, step / steps)) + "\n")
        return folder

    def metrics(self, step: int, skill: float) -> dict[str, Any]:
        noise = self.rng.gauss
        row: dict[str, Any] = {
            "step": step,
            "time": 1.7e9 + 30 * step,
            "reward/mean": skill - 0.5 + noise(0, 0.06),
        }
        for k, name in enumerate(self.agents):
            row |= {
                f"reward/{name}/mean": skill - 0.5 + 0.1 * k + noise(0, 0.08),
                f"completion_length/{name}/mean": self.length * (1 + skill * (k - 0.5))
                + noise(0, 1),
                f"entropy/{name}": 0.3 + 0.9 * (1 - skill) ** (1 + k) + noise(0, 0.03),
                f"approx_kl/{name}": abs(noise(0, 1e-3)),
                f"grad_norm/{name}": 0.4 + abs(noise(0, 0.3)),
                f"advantage/{name}/std": 0.3 + 0.3 * (1 - skill) + noise(0, 0.02),
                f"advantage/{name}/zero": min(1.0, 0.1 + 0.5 * skill + abs(noise(0, 0.05))),
                f"tokens/{name}/share": 0.5 + (k - 0.5) * 0.2 * skill,
            }
        if step % 5 == 0:
            row |= {
                "eval/reward/mean": 0.9 * skill - 0.4,
                "eval/reward/std": 0.5,
                "eval/episodes/count": 64,
            }
        return row

    def row(self, step: int, name: str, group: int, task: str, skill: float) -> dict[str, Any]:
        test = name.startswith("eval/")
        agents: dict[str, Any] = {}
        for agent in self.agents:
            reward = round(max(-1.0, min(1.0, self.rng.gauss(skill - 0.4, 0.5))), 2)
            agents[agent] = {"policy": agent, "reward": reward, "messages": [], "turns": []}
        last: tuple[str, str] = ("environment", "What is 5 + 7 + 29?")
        for turn in range(self.turns):
            for order, agent in enumerate(self.agents):
                sender = None if last[0] == "environment" else last[0]
                known = agents[agent]
                known["messages"].append({"role": "user", "content": last[1], "agent": sender})
                text, made = self.turn(turn, order, step, test)
                known["turns"].append({"message": len(known["messages"]), **made})
                known["messages"].append({"role": "assistant", "content": text, "agent": agent})
                last = agent, text
        reward = round(sum(agent["reward"] for agent in agents.values()) / len(agents), 3)
        metrics = {
            f"{agent}/correct": known["turns"][-1]["components"]["correct"]
            for agent, known in agents.items()
        }
        return {
            **{"schema": 2, "step": step, "group": group, "id": name, "environment": "sums"},
            **{"task_id": task, "status": "done", "reward": reward, "step_rewards": [reward]},
            "task": {
                "prompt": [{"role": "user", "content": "What is 5 + 7 + 29?", "agent": None}],
                "answer": "41",
            },
            **{"metrics": metrics, "error": None, "agents": agents},
            **({"greedy": True} if test else {}),
        }

    def turn(self, turn: int, order: int, step: int, test: bool) -> tuple[str, dict[str, Any]]:
        common = {
            **{"step": turn, "order": order, "index": turn, "version": step, "lag": 0},
            **{
                "sampling": {},
                "reward": 0.0,
                "components": {"correct": float(self.rng.random() < 0.5)},
            },
            **{"advantage": None, "return": None, "trained": True, "digest": ""},
        }
        if self.texts:
            text = self.texts[self.spoken % len(self.texts)]
            self.spoken += 1
            return text, {**common, "finish_reason": "stop", "tokens": 3}
        size = max(2, int(self.rng.gauss(self.length, self.length / 4)))
        ids = self.numbers.integers(0, len(WORDS), size)
        old = -self.numbers.exponential(0.5, size)
        columns = {
            "logprobs": half(old + self.numbers.normal(0, 0.01, size)),
            "old_logprobs": half(old),
            "entropies": half(self.numbers.gamma(1.2, 0.3, size)),
            **({} if test else {"last_logprobs": half(old + self.numbers.normal(0, 0.1, size))}),
        }
        made = {
            **{"tokens": size, "finish_reason": "length" if self.rng.random() < 0.1 else "stop"},
            **{"ids": ids_of(ids), "columns": columns},
            "prompt": [0, ids_of(self.numbers.integers(0, len(WORDS), 8))],
        }
        return "".join(WORDS[k] for k in ids), {**common, **made}

    def credit(self, group: list[dict[str, Any]]) -> None:
        """Advantages as GRPO has them; the first turns of the first agent are frozen in one of
        them."""
        for agent in self.agents:
            rewards = [row["agents"][agent]["reward"] for row in group]
            mean = sum(rewards) / len(rewards)
            for row, reward in zip(group, rewards, strict=True):
                for turn in row["agents"][agent]["turns"]:
                    turn["advantage"] = round(reward - mean, 4)
                    turn["why"] = (
                        f"{reward:g} \u2212 mean of {len(group)} siblings {mean:.3f} "
                        f"= {reward - mean:+.3f}"
                    )
                    if "columns" in turn:
                        turn["columns"]["advantages"] = turn["advantage"]
        frozen = group[0]["agents"][self.agents[0]]["turns"][0]
        frozen |= {"trained": False, "advantage": None}
        frozen.pop("why")
        frozen.get("columns", {}).pop("advantages", None)
