"""An experiment of two steps for any algorithm, on models with different tokenizers."""

import json
from typing import Any

import pytest
from benchmarks.learning.models import fresh
from benchmarks.learning.runs import DATA, world_of
from benchmarks.learning.table import TABLE
from benchmarks.worlds import reward_of

from mrlm import Callback, Message
from mrlm.build.environments import environment_factory
from mrlm.config.play_sections import EnvironmentConfig
from mrlm.core.types import Reward, StepResult
from mrlm.environments.games.matrix import MatrixEnvironment
from watched_runs import weights

LEARNING = {"training.batch_size", "training.learning_rate", "training.critic_learning_rate"}
"""Keys of the table that concern how well an algorithm learns."""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders of two very small models whose tokenizers give the same text other tokens."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("models")
    one, two = (fresh(folder / name, "matrix", seed) for seed, name in enumerate(("one", "two")))
    file = two / "tokenizer.json"
    data = json.loads(file.read_text())
    vocabulary, special = data["model"]["vocab"], len(data["added_tokens"])
    last = len(vocabulary) - 1
    data["model"]["vocab"] = {
        token: index if index < special else last - (index - special)
        for token, index in vocabulary.items()
    }
    file.write_text(json.dumps(data))
    first, second = map(AutoTokenizer.from_pretrained, (one, two))
    assert first("A B?").input_ids != second("A B?").input_ids
    assert second.decode(second("A B?").input_ids) == "A B?"
    return str(one), str(two)


class Talk(MatrixEnvironment):
    """A matrix game that pays something else for every joint answer, so that siblings differ."""

    def step(self, actions: dict[str, Message]) -> StepResult:
        result = super().step(actions)
        said = "/".join(actions[agent].content for agent in self.agents)
        result.rewards = {agent: Reward(reward_of(said)) for agent in self.agents}
        return result


class Watch(Callback):
    """Keeps the weights that training begins with."""

    def on_train_begin(self, run: Any) -> None:
        self.before = weights(run)


def rows_of(algorithm: str, turns: int) -> list[dict[str, Any]] | None:
    """What an algorithm that does not play is given: conversations of as many turns."""
    kind = TABLE[algorithm].learns_from
    if kind == "play":
        return None
    world = environment_factory(EnvironmentConfig(**world_of("climbing", TABLE[algorithm])))
    rows: list[dict[str, Any]] = []
    for row in DATA[kind](world):
        turn = [{"role": "user", "content": row["prompt"]}]
        earlier = [*turn, {"role": "assistant", "content": "B"}] * (turns - 1)
        rows.append({**row, "prompt": [*earlier, *turn]})
    return rows


def settings(algorithm: str, binding: str, turns: int, models: tuple[str, str]) -> dict[str, Any]:
    """An experiment of two steps on a world of two seats, with what the algorithm needs."""
    entry = TABLE[algorithm]
    one, two = models
    policies: dict[str, dict[str, Any]] = {
        "shared": {"team": {}},
        "separate": {"row": {}, "column": {}},
        "lora": {"row": {"lora": {"r": 2}}, "column": {"lora": {"r": 4}}},
        "tokenizers": {"row": {}, "column": {"model": two}},
    }[binding]
    config: dict[str, Any] = {
        "model": {"model_name_or_path": one},
        "environments": [
            {**world_of("climbing", entry), "env_type": "any_algorithm:Talk", "rounds": turns}
        ],
        "policies": policies,
        "training": {
            "algorithm": algorithm,
            "num_iterations": 2,
            "batch_size": 2,
            "learning_rate": 1e-3,
            "report_to": "none",
            "threads": 1,
        },
        "generation": {"max_new_tokens": 2},
    }
    own = dict(entry.settings)
    if "group_size" in own:
        own["group_size"] = 2
    if own:
        config[algorithm] = own
    if rows := rows_of(algorithm, turns):
        config["data"] = {"dataset": rows}
    return config
