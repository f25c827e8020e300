"""Calls of a user's reward functions: detection of their form, their arguments, and validation of
their results. Episodes that wait at the same time are scored in one call."""

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from mrlm.core.errors import ConfigError, EpisodeError, RewardError
from mrlm.core.log import log
from mrlm.core.matters import check_choices
from mrlm.core.registry import load
from mrlm.core.sync_async import BackgroundJobs, is_interrupt
from mrlm.environments.shared.rows import SharedByCopies, is_number

RewardFunction = Callable[..., Any]
BATCHED = frozenset({"prompts", "completions"})
"""Parameters of a function in the batched form."""
ABSENT = frozenset({"completion_ids", "trainer_state", "log_extra", "log_metric"})
"""Parameters of TRL's reward functions that are not passed."""
QUIET_TICKS = 5
"""Iterations of the event loop without a new episode after which the waiting ones are scored."""


@dataclass(slots=True)
class JointSample:
    """One joint action to be scored.

    Args:
        prompts: agent -> its prompt, text or `{"role", "content"}` messages.
        completions: agent -> its answer, in the same form.
        texts: agent -> its answer as text.
        columns, row_prompt: of its row.
    """

    task_id: str
    prompts: dict[str, Any]
    completions: dict[str, Any]
    texts: dict[str, str]
    columns: dict[str, Any] = field(default_factory=dict)
    row_prompt: Any = None

    @property
    def order(self) -> tuple[str, str]:
        """Sort key in a batch, independent of the order of arrival."""
        return self.task_id, repr(self.texts)


Waiting = tuple[JointSample, "asyncio.Future[Any]"]
"""A sample, and the future of its rewards."""


class FailedReward(EpisodeError):
    """A reward function gave no value for a sample: the episode failed."""


@dataclass(frozen=True, slots=True)
class RewardCalls:
    """The rule by which a user's reward function is called.

    Args:
        retries: further calls after one that raised an error or took too long.
        timeout: seconds of a call; `None`: no limit. A plain function is not stopped by it, but no
            longer waited for.
        on_error: `fail` ends the run, which is saved first; `skip`: the episode fails and counts in
            `episodes/failed`.
    """

    retries: int = 0
    timeout: float | None = None
    on_error: Literal["fail", "skip"] = "fail"

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None) -> "RewardCalls":
        """From the argument `rewards` of an environment. Raises `ConfigError`: it is invalid."""
        values = dict(settings or {})
        names = [field.name for field in fields(cls)]
        for name in values.keys() - set(names):
            raise ConfigError(f"rewards.{name}: unknown key (known: {', '.join(names)})")
        made = cls(**values)
        check_choices(made, "rewards")
        if type(made.retries) is not int or made.retries < 0:
            raise ConfigError(f"rewards.retries: must be a whole number, not {made.retries!r}")
        if made.timeout is not None and not (is_number(made.timeout) and made.timeout > 0):
            raise ConfigError(f"rewards.timeout: must be seconds above 0, not {made.timeout!r}")
        return made

    async def call(self, function: RewardFunction, where: str, *lists: Any, **columns: Any) -> Any:
        """The result of a call, or of a repeated one.

        Raises:
            FailedReward: all of them failed, and such episodes are skipped.
            RewardError: all of them failed, and that ends the run.
        """
        text, cause = where, None
        for attempt in range(self.retries + 1):
            try:
                async with asyncio.timeout(self.timeout) as limit:
                    return await _called(function, lists, columns)
            except BaseException as error:  # a user's function may raise anything
                if is_interrupt(error):
                    raise
                late = f"took longer than {self.timeout} s" if limit.expired() else ""
                text, cause = f"{where}: it {late or f'raised {error!r}'}", error
            if attempt < self.retries:
                log.warning("%s; called again (%d of %d)", text, attempt + 1, self.retries)
        kind = RewardError if self.on_error == "fail" else FailedReward
        raise kind(text) from cause


async def _called(function: RewardFunction, lists: Sequence[Any], columns: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*lists, **columns)
    answer = await asyncio.to_thread(function, *lists, **columns)
    return await answer if inspect.isawaitable(answer) else answer


class RewardProcessors:
    """Factories of functions for `reward_processor`, as in CoMLRL."""

    @staticmethod
    def scale(factor: float = 1.0) -> Callable[[float], float]:
        """A function that multiplies every reward by `factor`."""
        return lambda reward: reward * factor

    @staticmethod
    def shift(value: float = 0.0) -> Callable[[float], float]:
        """A function that adds `value` to every reward."""
        return lambda reward: reward + value


class NotFinite(EpisodeError):
    """A reward function returned a number that is not finite: the episode failed."""


Score = float | None | EpisodeError
"""A reward function's value for a sample: a number, `None`, or the error of a failed episode."""


class Scorer:
    """A reward function and its calling convention. Raises `ConfigError` if it does not accept one
    list per agent."""

    def __init__(
        self, function: RewardFunction, name: str, agents: Sequence[str], calls: RewardCalls
    ) -> None:
        self.function = function
        self.calls = calls
        self.name = name
        self.agents: tuple[str, ...] = tuple(agents)
        self._warned = False
        parameters = list(inspect.signature(function).parameters.values())
        kinds = {p.kind for p in parameters}
        self._any = inspect.Parameter.VAR_KEYWORD in kinds
        positional = [
            p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        count = len(self.agents)
        names = {p.name for p in parameters if p.kind is not p.VAR_POSITIONAL} & BATCHED
        self._prompts_first: bool = names == {"prompts"} and len(positional) == count + 1 > 2
        columns_only = kinds == {inspect.Parameter.VAR_KEYWORD}
        self.batched: bool = columns_only or (bool(names) and not self._prompts_first)
        taken = 0 if self.batched else count + self._prompts_first
        named = positional[taken:] + [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        self._wanted = {p.name for p in named}
        self._required = {p.name for p in named if p.default is p.empty} - BATCHED
        if absent := ABSENT & {p.name for p in parameters if p.default is p.empty}:
            text = "is not passed; give it the default None (see docs/coming_from.md)"
            raise ConfigError(f"reward function {name!r}: {min(absent)} {text}")
        if inspect.Parameter.VAR_POSITIONAL not in kinds and len(positional) < taken:
            raise ConfigError(
                f"reward function {name!r} takes {len(positional)} lists for {taken} agents "
                f"({', '.join(agents)}); "
                "declare one parameter per agent, or `prompts` and `completions`"
            )

    async def score(self, samples: Sequence[JointSample]) -> list[Score]:
        """One reward per sample; `None` if the function abstains, an error for a non-finite value.
        Raises `RewardError`: it failed, or returned something else."""
        if self.batched:
            return await self._batch(samples)
        scores: list[Score] = []
        for sample in samples:
            lists = [[sample.texts[agent]] for agent in self.agents]
            prompt = sample.row_prompt
            lists[:0] = [[prompt]] * self._prompts_first
            offered = {"batch_items": [{"prompt": prompt, **sample.columns}], "prompts": [prompt]}
            offered |= {name: [value] for name, value in sample.columns.items()}
            scores += await self._values([sample.task_id], lists, offered)
        return scores

    async def _batch(self, samples: Sequence[JointSample]) -> list[Score]:
        """Call the function with every agent's completion as a sample; the team's reward is the
        mean over its agents."""
        flat = [(sample, agent) for sample in samples for agent in self.agents]
        names = dict.fromkeys(name for sample in samples for name in sample.columns)
        offered = {
            "prompts": [sample.prompts[agent] for sample, agent in flat],
            "completions": [sample.completions[agent] for sample, agent in flat],
            "agent": [agent for _, agent in flat],
            **{name: [sample.columns.get(name) for sample, _ in flat] for name in names},
        }
        ids = [sample.task_id for sample, _ in flat]
        values = await self._values(ids, (), offered)
        if len(samples) > 1 and isinstance(values[0], FailedReward):  # which of them was it?
            return [value for sample in samples for value in await self._batch([sample])]
        size = len(self.agents)
        return [_mean(values[i : i + size]) for i in range(0, len(values), size)]

    async def _values(
        self, ids: Sequence[str], lists: Sequence[Any], offered: dict[str, Any]
    ) -> list[Score]:
        """The values that the function returns for samples, checked."""
        where = f"reward function {self.name!r}, {_samples(ids)}"
        missing = sorted(self._required - offered.keys())
        if missing:
            columns = ", ".join(name for name in offered if name not in (*BATCHED, "batch_items"))
            raise RewardError(
                f"{where}: it requires the column {missing[0]!r}, but the rows have "
                f"{columns or 'no other columns'}"
            )
        arguments = {name: offered[name] for name in offered if self._any or name in self._wanted}
        try:
            answer = await self.calls.call(self.function, where, *lists, **arguments)
        except FailedReward as error:
            if len(ids) <= len(self.agents):  # a batch is called again by sample
                log.warning("%s; the episode failed (rewards.on_error: skip)", error)
            return [error] * len(ids)
        sized = hasattr(answer, "__len__") and hasattr(answer, "__iter__")
        is_list = sized and not isinstance(answer, str | dict)
        if not is_list or len(answer) != len(ids):
            got = f"{len(answer)} values" if is_list else repr(answer)
            raise RewardError(f"{where}: expected a list of {len(ids)} numbers, got {got}")
        return [self._number(value, task_id) for value, task_id in zip(answer, ids, strict=True)]

    def _number(self, value: Any, task_id: str) -> Score:
        if value is None:
            return None
        where = f"reward function {self.name!r}, sample of task {task_id!r}"
        try:
            number = None if isinstance(value, str) else float(value)
        except (TypeError, ValueError):
            number = None
        if number is None:
            raise RewardError(f"{where}: a reward must be a finite number or None, not {value!r}")
        if math.isfinite(number):
            return number
        error = NotFinite(f"{where}: the reward is {number}; the episode failed")
        if not self._warned:
            self._warned = True
            log.warning("%s. Later ones are counted in episodes/failed", error)
        return error


def user_function(setting: Any, name: str) -> Callable[..., Any] | None:
    """A user's function from a setting: the function, its `module:name`, or `None`. Raises
    `ConfigError` for anything else."""
    return None if setting is None else required_function(setting, name)


def required_function(setting: Any, name: str) -> Callable[..., Any]:
    """A user's function from a setting that must be given, as `user_function`; the folder or hub id
    of a reward model, which has a `/`, is that model."""
    if hasattr(setting, "save_pretrained"):
        text = f"{name}: save this {type(setting).__name__} with its tokenizer; give the folder"
        raise ConfigError(text)
    if isinstance(setting, str) and "/" in setting:
        return load("engines", "reward_model")(setting)
    named = isinstance(setting, str) and ":" in setting
    function = load("environments", setting) if named else setting
    if not callable(function):
        raise ConfigError(f"{name}: expected a function or 'module:name', not {setting!r}")
    return function


class Scorers(SharedByCopies):
    """All reward functions of an environment, shared by its copies, so that episodes that end
    together are scored together.

    Args:
        functions: one function, a list of them, or their `module:name`.
    """

    def __init__(
        self,
        functions: Any,
        agents: Sequence[str],
        calls: RewardCalls | None = None,
        weights: Sequence[float] | None = None,
    ) -> None:
        calls = calls or RewardCalls()
        listed = functions if isinstance(functions, list | tuple) else [functions]
        if not listed:
            raise ConfigError("reward_func is an empty list; give at least one function")
        self.scorers: list[Scorer] = []
        for spec in listed:
            function = required_function(spec, "reward_func")
            name = _name(function, len(self.scorers), {scorer.name for scorer in self.scorers})
            self.scorers.append(Scorer(function, name, agents, calls))
        self._weights = _weights(weights, [scorer.name for scorer in self.scorers])
        self._waiting: dict[asyncio.AbstractEventLoop, list[Waiting]] = {}
        self._jobs = BackgroundJobs()

    def total(self, components: Mapping[str, float]) -> float:
        """The sum of the functions' values, weighted."""
        return sum(self._weights[name] * value for name, value in components.items())

    async def score(self, sample: JointSample) -> dict[str, float]:
        """Function name -> its reward for this sample; a function that abstains is left out."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[dict[str, float]] = loop.create_future()
        if loop in self._waiting:
            self._waiting[loop].append((sample, future))
        else:
            self._waiting[loop] = [(sample, future)]
            self._jobs.start(self._serve(loop))
        return await future

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while self._waiting[loop]:
                await self._quiet(loop)
                batch, self._waiting[loop] = self._waiting[loop], []
                batch = [entry for entry in batch if not entry[1].done()]  # some gave up waiting
                batch.sort(key=lambda entry: entry[0].order)
                if batch:
                    await self._answer(batch)
        finally:
            for _, future in self._waiting.pop(loop):
                future.cancel()

    async def _quiet(self, loop: asyncio.AbstractEventLoop) -> None:
        seen, still = 0, 0
        while still < QUIET_TICKS:
            await asyncio.sleep(0)
            now = len(self._waiting[loop])
            still = still + 1 if now == seen else 0
            seen = now

    async def _answer(self, batch: list[Waiting]) -> None:
        samples = [sample for sample, _ in batch]
        results: list[dict[str, float]] = [{} for _ in samples]
        failed: dict[int, EpisodeError] = {}
        try:
            for scorer in self.scorers:
                for index, value in enumerate(await scorer.score(samples)):
                    if isinstance(value, EpisodeError):
                        failed.setdefault(index, value)
                    elif value is not None:
                        results[index][scorer.name] = value
        except RewardError as error:
            for _, future in batch:
                if not future.done():
                    failure = RewardError(str(error)).with_traceback(error.__traceback__)
                    failure.__cause__ = error.__cause__
                    future.set_exception(failure)
            return
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        for index, ((_, future), result) in enumerate(zip(batch, results, strict=True)):
            if future.done():
                continue
            if index in failed:
                future.set_exception(failed[index])
            else:
                future.set_result(result)


def _weights(values: Sequence[float] | None, names: Sequence[str]) -> dict[str, float]:
    weights = [1.0] * len(names) if values is None else list(values)
    if len(weights) != len(names):
        raise ConfigError(
            f"reward_weights has {len(weights)} numbers for {len(names)} reward functions "
            f"({', '.join(names)}); give one each"
        )
    return {name: float(weight) for name, weight in zip(names, weights, strict=True)}


def _mean(values: Sequence[Score]) -> Score:
    failed = next((value for value in values if isinstance(value, EpisodeError)), None)
    numbers = [value for value in values if isinstance(value, float)]
    return failed or (sum(numbers) / len(numbers) if numbers else None)


def _samples(ids: Sequence[str]) -> str:
    different = list(dict.fromkeys(ids))
    if len(different) == 1:
        return f"sample of task {different[0]!r}"
    more = ", ..." if len(different) > 3 else ""
    return f"{len(ids)} samples of tasks {', '.join(map(repr, different[:3]))}{more}"


def _name(function: Any, index: int, taken: set[str]) -> str:
    name = str(getattr(function, "__name__", type(function).__name__))
    name = f"reward_{index}" if name == "<lambda>" else name
    return f"{name}_{index}" if name in taken else name
