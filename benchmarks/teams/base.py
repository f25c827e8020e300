"""The models that both arms of a comparison start from: taught with as many rows for each arm of a
game, what answers look like, and habits."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.learning.models import fresh
from benchmarks.teams.settings import ARMS, Arm, added
from mrlm.core.types import Message

ROWS = 192
"""For each arm of a game."""
HABIT = 0.5
"""Share of the rows of a prompt with the answer that the base prefers; the others are random."""
PLAYS = 300
"""Episodes that are played to find the prompts."""
Chat = tuple[tuple[str, str], ...]


def prompts_of(arm: Arm, seed: int) -> dict[Chat, str]:
    """Conversations that agents of an arm meet in training if all answer at random, with the
    letters of a legal answer."""
    from mrlm.build.environments import environment_factory
    from mrlm.config.play_sections import EnvironmentConfig

    made = environment_factory(EnvironmentConfig(**arm.environment))
    rng, found = random.Random(f"prompts {seed}"), dict[Chat, str]()
    for number in range(PLAYS):
        result = made.reset(made.task(number))
        talks: dict[str, list[tuple[str, str]]] = {name: [] for name in made.agents}
        while not result.done:
            actions = {}
            for name, seen in result.observations.items():
                talks[name] += [("user", message.content) for message in seen.messages]
                letters = letters_of(arm, name)
                found.setdefault(tuple(talks[name]), letters)
                text = "".join(rng.choices(letters, k=arm.length))
                talks[name].append(("assistant", text))
                actions[name] = Message(text)
            result = made.step(actions)
    return found


def letters_of(arm: Arm, agent: str) -> str:
    """The characters of an agent's answers."""
    return arm.letters.get(agent, arm.letters.get("", ""))


def rows_of(arm: Arm, seed: int) -> list[dict[str, Any]]:
    """What the base reads of an arm."""
    rng, prompts = random.Random(f"rows {seed}"), prompts_of(arm, seed)
    habits = {}
    for chat, letters in prompts.items():
        habit = added(chat[0][1]) if arm.knows else ""
        fits = len(habit) == arm.length and set(habit) <= set(letters)
        habits[chat] = habit if fits else "".join(rng.choices(letters, k=arm.length))
    rows = []
    order = sorted(prompts)
    rng.shuffle(order)
    for number in range(ROWS):
        chat = order[number % len(order)]
        drawn = "".join(rng.choices(prompts[chat], k=arm.length))
        text = habits[chat] if rng.random() < HABIT else drawn
        messages = [{"role": role, "content": content} for role, content in chat]
        rows.append({"prompt": messages, "completion": text})
    return rows


def base_of(game: str, seed: int, folder: Path, steps: int = 48) -> Path:
    """The folder of the weights that all arms of a game start from; made once.

    Args:
        game: of the arms.
        seed: of weights, habits and rows.
        folder: of all models.
        steps: iterations with 16 rows.
    """
    from mrlm import ExperimentConfig, run_experiment

    place = folder / f"{game}-{seed}"
    if (place / "config.json").is_file():
        return place
    work = folder / f"{game}-{seed}-teaching"
    shutil.rmtree(work, ignore_errors=True)
    arms = [arm for arm in ARMS.values() if arm.game == game]
    alike: dict[str, Arm] = {str((arm.environment, arm.workflow)): arm for arm in arms}
    config: Mapping[str, Any] = {
        "output_dir": str(work / "run"),
        "model": {"model_name_or_path": str(fresh(work / "fresh", "matrix", seed))},
        "policies": {"base": {}},
        "data": {"dataset": [row for arm in alike.values() for row in rows_of(arm, seed)]},
        "training": {
            "algorithm": "sft",
            "num_iterations": steps,
            "batch_size": 16,
            "learning_rate": 1e-2,
            "lr_scheduler_type": "linear",
            "seed": seed,
            "report_to": "none",
            "threads": 1,
        },
    }
    result = run_experiment(ExperimentConfig(**config))
    (result.run_folder / "final").rename(place)
    shutil.rmtree(work)
    return place
