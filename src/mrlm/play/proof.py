"""Proof that the rows of an environment can be played: its expert is rewarded for each of them."""

import asyncio
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mrlm.core.environment import Environment, Split
from mrlm.core.errors import DataError, MRLMError
from mrlm.core.log import log
from mrlm.core.stepping import is_pending
from mrlm.core.sync_async import run_async
from mrlm.core.tiny_model import cache_folder
from mrlm.core.types import Message, Role, StepResult

SAMPLE = 1_000
"""Most rows of a split proved when a run starts, spread evenly; `mrlm data check` proves all."""
AT_ONCE = 8
MOST_STEPS = 50
SHOWN = 3
"""Most rows that an error names."""


class RowsBySplit(Protocol):
    """The rows of an environment by split."""

    on_bad_row: str
    proved: bool
    """Whether they were proved before."""
    bad: list[DataError]
    """Malformed rows that were skipped."""

    def row(self, seed: int, split: Split) -> tuple[int, dict[str, Any]]:
        """The row of a seed, preceded by its index in the split."""
        ...

    def drop(self, split: Split, places: Collection[int]) -> None:
        """Leave rows of a split out."""
        ...


@runtime_checkable
class Provable(Protocol):
    """An environment whose rows can be proved."""

    expert_return: float | None
    """Least return of every agent in an episode that the expert plays; `None`: unknown."""
    slow_proof: bool
    """Whether the proof takes so long that it is cached."""

    @property
    def row_table(self) -> RowsBySplit | None:
        """The rows, if it has any."""
        ...

    def prover(self) -> Environment:
        """A copy in which the expert plays a row."""
        ...


@dataclass(slots=True)
class Proof:
    """The result of playing the rows of a split with the expert.

    Args:
        checked: number of rows that were played.
        silent: number of those for which there is no expert.
        problems: index of a row -> why it cannot be played, or the smaller return of its expert.
    """

    rows: int
    checked: int
    silent: int = 0
    problems: dict[int, str] = field(default_factory=dict)


def proved(env: Environment, split: Split, most: int | None = SAMPLE) -> Proof:
    """Play the rows of a split with the expert of the environment; results for the same rows and
    settings are cached in the user's cache folder.

    Args:
        split: the split of its rows.
        most: play at most so many rows, spread evenly; all when `None`.

    Returns:
        The proof.
    """
    count = env.num_tasks(split) or 0
    number = count if most is None else min(count, most)
    places = [index * count // number for index in range(number)]
    file = _cached(env, split, places)
    if file is not None and file.is_file():
        stored = json.loads(file.read_text(encoding="utf-8"))
        problems = {int(index): reason for index, reason in stored.pop("problems").items()}
        return Proof(**stored, problems=problems)
    results = run_async(_played(env, split, places))
    problems = {index: result for index, result in results.items() if result}
    proof = Proof(count, number, sum(result is None for result in results.values()), problems)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f"{file.name}.{os.getpid()}")
        new.write_text(json.dumps(asdict(proof)), encoding="utf-8")
        new.replace(file)
    return proof


def check_rows(env: Environment, where: str, slow: bool = True) -> None:
    """Prove the rows of an environment, at the start of a run.

    Args:
        env: the environment; only one with rows and `expert_return` is checked.
        where: its name, for errors.
        slow: whether to check it also if its proof takes long.

    Raises:
        DataError: the expert is not rewarded for some row, and `on_bad_row` is not `skip`, which
            leaves such rows out; or no row remains.
    """
    while isinstance(inside := getattr(env, "environment", None), Environment):
        env = inside  # it plays the rows of another one
    if not isinstance(env, Provable) or env.expert_return is None:
        return
    table = env.row_table
    if table is None or table.proved or (env.slow_proof and not slow):
        return
    for split in ("train", "eval"):
        proof = proved(env, split)
        if not proof.problems:
            continue
        rows = [table.row(index, split)[1] for index in list(proof.problems)[:SHOWN]]
        reasons = zip(proof.problems.items(), rows, strict=False)
        text = "; ".join(f"{_named(split, index, row)}: {why}" for (index, why), row in reasons)
        counts = f"{len(proof.problems)} of {proof.checked} rows"
        if table.on_bad_row != "skip" or len(proof.problems) == proof.rows:
            raise DataError(
                f"environment {where}: {counts} cannot be solved by their own answers: {text}; "
                "correct or remove them, or leave them out with on_bad_row: skip (mrlm data check "
                "lists all)"
            )
        log.warning("environment %s: %s are left out: %s", where, counts, text)
        table.drop(split, proof.problems)
    table.proved = True


def _named(split: str, index: int, row: dict[str, object]) -> str:
    title = row.get("task_id", row.get("id"))
    return f"{split} row {index}" + (f" ({title})" if title is not None else "")


def _cached(env: Environment, split: Split, places: Sequence[int]) -> Path | None:
    """The file of a proof, where it takes long to find; by the rows and the settings."""
    folder = cache_folder()
    if folder is None or not isinstance(env, Provable) or not env.slow_proof:
        return None
    if (table := env.row_table) is None:
        return None
    rows = [table.row(index, split)[1] for index in places]
    settings = {name: repr(value) for name, value in vars(env).items() if name[0] != "_"}
    version = importlib.metadata.version("mrlm")
    text = json.dumps([version, type(env).__name__, settings, rows], default=str)
    key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return folder / "proofs" / f"{key}.json"


async def _played(env: Environment, split: Split, places: Sequence[int]) -> dict[int, str | None]:
    """Row -> why it cannot be played; empty if the expert is rewarded, `None` without one."""
    assert isinstance(env, Provable)
    full = env.expert_return or 0.0
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(index: int) -> str | None:
        async with turns:
            try:
                problem = await _problem(env.prover(), split, index, full)
                if problem:  # tests that read the clock fail where a second ends between two calls
                    problem = await _problem(env.prover(), split, index, full)
                return problem
            except MRLMError as error:
                return str(error)

    return dict(zip(places, await asyncio.gather(*map(one, places)), strict=True))


async def _problem(env: Environment, split: Split, index: int, full: float) -> str | None:
    result = await _now(env.reset(env.task(index, split), index))
    earned: dict[str, float] = {}
    parts: dict[str, float] = {}
    for _ in range(MOST_STEPS):
        actions = {}
        for agent, seen in result.observations.items():
            text = env.expert(agent, seen.messages)
            if text is None:
                return None
            actions[agent] = Message(text, Role.ASSISTANT, agent)
        result = await _now(env.step(actions))
        for agent, reward in result.rewards.items():
            earned[agent] = earned.get(agent, 0.0) + reward.value
            parts |= reward.components
        if result.done or result.truncated:
            break
    least = min(earned.values(), default=0.0)
    if least >= full - 1e-6:
        return ""
    shares = ", ".join(f"{name} {value:g}" for name, value in parts.items())
    return f"its own answer is rewarded {least:g}, not {full:g} ({shares})"


async def _now(result: Any) -> StepResult:
    return await result if is_pending(result) else result
