"""Small runs with planted diseases: environments, algorithms, an engine and a policy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mrlm.algorithms.magrpo import MAGRPO
from mrlm.core.episodes import Group
from mrlm.core.types import Message, Reward, StepResult
from mrlm.engines.lean import PLUGIN as LEAN
from mrlm.environments.games.matrix import MatrixEnvironment
from mrlm.learn.data.batch import Batch, Loss, Outputs
from mrlm.learn.policy.policy import Policy

GAME: dict[str, Any] = {
    "env_type": "matrix",
    "game": "custom",
    "payoffs": [[0.0, 0.2, 0.4], [0.2, 0.4, 0.6], [0.4, 0.6, 1.0]],
    "illegal": 0.0,
}
"""A game in which every agent's action counts for itself: C is best."""
TRAINING: dict[str, Any] = {
    "algorithm": "magrpo", "num_iterations": 24, "batch_size": 4, "learning_rate": 2e-3,
    "report_to": "none", "threads": 1,
}  # fmt: skip


class Constant(MatrixEnvironment):
    """Every joint action has the same reward."""

    def step(self, actions: dict[str, Message]) -> StepResult:
        result = super().step(actions)
        result.rewards = {agent: Reward(0.5) for agent in result.rewards}
        return result


class Hackable(MatrixEnvironment):
    """Half of the reward is the truth; the rest is paid for the word A, which is the worst one."""

    def step(self, actions: dict[str, Message]) -> StepResult:
        result = super().step(actions)
        result.rewards = {
            agent: Reward(
                reward.value + 2.0 * ("A" in actions[agent].content),
                {"correct": reward.value, "bonus": float("A" in actions[agent].content)},
            )
            for agent, reward in result.rewards.items()
        }
        return result


class Descent(MAGRPO):
    """The sign of the loss is swapped."""

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        found = super().loss(batch, outputs)
        return Loss(-found.total, found.metrics, found.tokens)


class NeverStops(MAGRPO):
    """The last token of a completion, which stops it, is not trained."""

    def credit(self, groups: Sequence[Group]) -> None:
        super().credit(groups)
        for turn in (t for group in groups for episode in group for t in episode.turns):
            advantage = turn.advantages
            if isinstance(advantage, float) and len(turn) > 1:
                turn.advantages = [*[advantage] * (len(turn) - 1), 0.0]


class Stale(LEAN):
    """It says that it has new weights, and keeps the first ones."""

    async def load_weights(self, policy: str, weights: Policy, version: int) -> None:
        await super(LEAN, self).load_weights(policy, weights, version)


def mute(model: Path, folder: Path) -> Path:
    """A model whose every completion is empty: whatever it reads, it ends its turn."""
    found: Any = AutoModelForCausalLM.from_pretrained(model)
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    found.config.tie_word_embeddings = False
    table = found.get_input_embeddings().weight
    with torch.no_grad():
        table.copy_(torch.linspace(-1, 1, table.shape[1]).expand_as(table))
        state = found.model(torch.tensor([[1, 2]])).last_hidden_state[0, -1]
        head = torch.zeros_like(table)
        head[tokenizer.eos_token_id] = 20 * state / (state @ state)
    found.lm_head.weight = torch.nn.Parameter(head)
    found.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Breaks(MatrixEnvironment):
    """Every step fails."""

    def step(self, actions: dict[str, Message]) -> StepResult:
        raise RuntimeError("the table is out of order")
