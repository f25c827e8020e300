"""The models that both arms of a comparison start from: taught with as many rows for each arm of a
game, what answers look like, and habits."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning.models import fresh
from benchmarks.teams.settings import ARMS, Arm, added
from mrlm.core.chat import Chat
from mrlm.core.types import Message, Role

ROWS = 192
"""For each arm of a game."""
HABIT = 0.6
"""Share of a game's rows with the answer that the base prefers; the others are random."""
BATCH, RATE = 32, 5e-3
PLAYS = 300
"""Episodes that are played to find the prompts."""
STEPS = 60
"""Iterations on the rows of a game."""
READER, READER_STEPS = 999, 1200
"""Seed and iterations of the model that learns to read."""
Talk = tuple[tuple[str, str], ...]
Pair = tuple[list[Message], str]


def prompts_of(arm: Arm, seed: int) -> dict[Talk, tuple[str, str]]:
    """Conversations that agents of an arm meet in training if all answer at random, with the
    letters of a legal answer, and the answer that the base prefers (empty if it is drawn)."""
    from mrlm.build.environments import environment_factory
    from mrlm.config.play_sections import EnvironmentConfig

    made = environment_factory(EnvironmentConfig(**arm.environment))
    rng, found = random.Random(f"prompts {seed}"), dict[Talk, tuple[str, str]]()
    for number in range(PLAYS):
        result = made.reset(made.task(number))
        talks: dict[str, list[tuple[str, str]]] = {name: [] for name in made.agents}
        while not result.done:
            actions = {}
            for name, seen in result.observations.items():
                talks[name] += [("user", message.content) for message in seen.messages]
                letters = letters_of(arm, name)
                known = {"drawn": "", "total": added(talks[name][0][1])}
                known["expert"] = made.expert(name, seen.messages) or ""
                found.setdefault(tuple(talks[name]), (letters, known[arm.knows]))
                text = "".join(rng.choices(letters, k=arm.length))
                talks[name].append(("assistant", text))
                actions[name] = Message(text)
            result = made.step(actions)
    return found


def letters_of(arm: Arm, agent: str) -> str:
    """The characters of an agent's answers."""
    return arm.letters.get(agent, arm.letters.get("", ""))


def rows_of(arm: Arm, seed: int, share: float = HABIT) -> list[Pair]:
    """What the base reads of an arm: conversations and answers.

    Args:
        arm: which.
        seed: of habits and rows.
        share: of rows with the habit.
    """
    rng, prompts = random.Random(f"rows {seed}"), prompts_of(arm, seed)
    order = sorted(prompts)
    rng.shuffle(order)
    habits = {}
    for number, talk in enumerate(order):  # every letter about equally often
        letters, habit = prompts[talk]
        drawn = letters[number % len(letters)] + "".join(rng.choices(letters, k=arm.length - 1))
        habits[talk] = habit if len(habit) == arm.length and set(habit) <= set(letters) else drawn
    rows = []
    for number in range(ROWS):
        talk = order[number % len(order)]
        drawn = "".join(rng.choices(prompts[talk][0], k=arm.length))
        text = habits[talk] if rng.random() < share else drawn
        rows.append(([Message(content, Role(role)) for role, content in talk], text))
    return rows


def base_of(
    game: str,
    seed: int,
    folder: Path,
    steps: int = STEPS,
    reader_steps: int = READER_STEPS,
    arms: Mapping[str, Arm] = ARMS,
    share: float = HABIT,
) -> Path:
    """The folder of the weights that all arms of a game start from; made once.

    Args:
        game: of the arms.
        seed: of habits and rows.
        folder: of all models.
        steps: iterations on the game's rows.
        reader_steps: those of the model before.
        arms: of all games that the model before reads.
        share: of the game's rows with the habit.
    """
    place = folder / f"{game}-{seed}"
    if not (place / "config.json").is_file():
        own = distinct(arm for arm in arms.values() if arm.game == game)
        rows = [row for arm in own for row in rows_of(arm, seed, share)]
        taught(reader(folder, reader_steps, arms), place, rows, steps)
    return place


def reader(folder: Path, steps: int, arms: Mapping[str, Arm]) -> Path:
    """A model that has learned one answer to each prompt of all games, and so to read them; made
    once; without steps, one that has learned nothing."""
    place = folder / "reader"
    if not (place / "config.json").is_file():
        start = fresh(folder / "fresh", "matrix", 0)
        if not steps:
            return start
        rows = [row for arm in distinct(arms.values()) for row in rows_of(arm, READER, 1.0)]
        taught(start, place, rows, steps)
    return place


def distinct(arms: Iterable[Arm]) -> list[Arm]:
    """Arms with different prompts."""
    return list({str((arm.environment, arm.workflow)): arm for arm in arms}.values())


def taught(start: Path, place: Path, rows: Sequence[Pair], steps: int) -> None:
    """Trains a model on rows and writes it to `place`, whole or not at all."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    work = place.with_name(f"{place.name}-teaching")
    shutil.rmtree(work, ignore_errors=True)
    tokenizer = AutoTokenizer.from_pretrained(start)
    model: Any = AutoModelForCausalLM.from_pretrained(start)
    data = [encoded(Chat(tokenizer), *row) for row in rows]
    rng, optimizer = random.Random(place.name), torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / steps)
        loss = model(**padded(rng.sample(data, BATCH))).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.save_pretrained(work)
    tokenizer.save_pretrained(work)
    work.rename(place)


def encoded(chat: Chat, messages: list[Message], text: str) -> tuple[list[int], list[int]]:
    """Token ids of a prompt, and of an answer with its end."""
    return chat.prompt(messages).ids, [*chat.encode_text(text), chat.tokenizer.eos_token_id]


def padded(rows: Sequence[tuple[list[int], list[int]]]) -> dict[str, Any]:
    """Arguments of a model for prompts and answers, each (B, T); only answers are trained on."""
    import torch

    length = max(len(read) + len(said) for read, said in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for row, (read, said) in enumerate(rows):
        end = len(read) + len(said)
        ids[row, :end], mask[row, :end] = torch.tensor([*read, *said]), 1
        labels[row, len(read) : end] = torch.tensor(said)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
