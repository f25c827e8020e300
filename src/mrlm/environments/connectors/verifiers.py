"""Tasksets of the library verifiers: questions of a taskset, scored with the task's own rewards."""

import inspect
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from mrlm.core import registry
from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Reward, Role, StepResult, Task
from mrlm.environments.connectors.libraries import finite, needed, said
from mrlm.environments.shared.questions import QuestionEnvironment
from mrlm.environments.shared.rows import SharedByCopies, at_least, is_held_out, whole_number


class VerifierRows(SharedByCopies, dict[str, Sequence[Any]]):
    """The tasks of a taskset by split."""


class VerifiersEnvironment(QuestionEnvironment):
    """An environment of tasks from a `verifiers.v1` taskset: the agent reads a task's system prompt
    and prompt, and answers once. Its reward is the weighted sum of the task's rewards, each of
    which is logged by its name, as are its metrics (`metric/<name>`).

    The library runs agents as its own programs, with tools and containers; here the agent is the
    trained model. Tasks that need a container, tools, or rewards that need a running environment
    are rejected. An empty answer costs `malformed`; other malformed answers are scored by the
    task's own rewards. If a reward function raises an error, the episode ends with an error and has
    no reward. Reproducibility depends on the reward functions; judges query a model.

    A tenth of the tasks is held out, by the text of their prompts; alternatively another taskset
    can be held out.

    Args:
        taskset: id of an installed taskset package, or `module:Class` of a `Taskset`; in Python the
            taskset itself.
        config: settings of the taskset.
        eval_taskset: source of held-out tasks.
        max_tasks: maximum number of tasks read, also of an unlimited taskset.
        answer: name of the field of the task's data with the right answer, for `expert`.
        malformed: penalty of an empty answer.
        agents: name of the agent.

    Raises:
        ConfigError: the library is not installed, the taskset does not exist or cannot be loaded,
            or its tasks need more than an answer.
    """

    def __init__(
        self,
        taskset: Any,
        config: Mapping[str, Any] | None = None,
        eval_taskset: Any = None,
        max_tasks: int = 10_000,
        answer: str | None = None,
        malformed: float = 0.1,
        agents: str | Sequence[str] = "agent",
    ) -> None:
        needed("verifiers")
        at_least(0, malformed=malformed)
        whole_number(1, max_tasks=max_tasks)
        super().__init__(agents)
        self.malformed: float = float(malformed)
        self.answer = answer
        self.title: str = taskset if isinstance(taskset, str) else type(taskset).__name__
        tasks = _read(taskset, config or {}, max_tasks)
        if eval_taskset is not None:
            held = _read(eval_taskset, config or {}, max_tasks)
        else:
            held = [task for task in tasks if is_held_out(task.data.prompt_text)]
            tasks = [task for task in tasks if not is_held_out(task.data.prompt_text)] or tasks
            held = held or tasks
        if answer is not None and not hasattr(tasks[0].data, answer):
            raise ConfigError(f"verifiers {self.title}: task data has no field answer={answer!r}")
        self._rows = VerifierRows(train=tasks, eval=held)
        self._data: Any = None

    def num_tasks(self, split: Split = "train") -> int | None:
        return len(self._rows[split])

    def task(self, seed: int, split: Split = "train") -> Task:
        rows = self._rows[split]
        index = seed % len(rows)
        row = rows[index]
        gold = None if self.answer is None else getattr(row.data, self.answer)
        info = {"split": split, "index": index}
        return Task(f"verifiers-{split}-{index}", _opening(row.data), gold, seed, info)

    def begin(self, task: Task) -> None:
        index, split = task.info.get("index"), str(task.info.get("split"))
        if split not in self._rows or not isinstance(index, int):
            raise ConfigError(f"verifiers: task {task.id!r} does not belong to this environment")
        self._data = self._rows[split][index]

    def step(self, actions: dict[str, Message]) -> StepResult:
        (agent,) = self.agents
        text = said(actions.get(agent))
        components = {"malformed": float(not text.strip())}
        value = -self.malformed
        if text.strip():
            scored = self._scored(text, actions[agent])
            value, scores = run_async(scored)  # in a thread, under the deadline
            components |= scores
        return StepResult(rewards={agent: Reward(value, components)}, done=True)

    def state(self) -> str:
        return "\n".join(message.content for message in _opening(self._data.data))

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        return None if self.answer is None or self._data is None else str(self._task.answer)

    async def _scored(self, text: str, message: Message) -> tuple[float, dict[str, float]]:
        """Score an answer by the task's own functions: the reward, and all values by name."""
        where = f"verifiers {self.title}, task {self._data.data.idx}"
        trace = _trace(self._data, text, message)
        try:
            await self._data.score(trace)
        except Exception as error:
            raise EpisodeError(f"{where}: scoring failed: {error}"[:500]) from error
        scores: dict[str, float] = {}
        total = 0.0
        for name, reward in trace.rewards.items():
            if reward is None:
                raise EpisodeError(f"{where}: the reward {name!r} is missing")
            scores[name] = finite(reward.score, f"{where}, reward {name!r}")
            total += finite(reward.value, f"{where}, reward {name!r}")
        for name, value in trace.metrics.items():
            if value is not None:
                scores[f"metric/{name}"] = finite(value, f"{where}, metric {name!r}")
        return total, scores


def _read(taskset: Any, config: Mapping[str, Any], most: int) -> list[Any]:
    """The tasks of a taskset, checked to need only an answer."""
    named = isinstance(taskset, str) or inspect.isclass(taskset)
    source: Any = _made(taskset, config) if named else taskset
    title = type(source).__name__
    tasks: list[Any] = list(itertools.islice(source, most))
    if not tasks:
        raise ConfigError(f"verifiers: the taskset {title} is empty")
    first = tasks[0]
    kind: Any = type(first)
    found_needs = {
        "a container": kind.NEEDS_CONTAINER,
        "tools": kind.toolsets(first.config) or type(source).toolsets(source.config),
        "a user who opens the conversation": first.data.prompt is None,
        "a running environment for its rewards": any(map(_needs_runtime, first.hooks("reward"))),
    }
    needs = [what for what, is_needed in found_needs.items() if is_needed]
    if needs:
        raise ConfigError(
            f"verifiers: tasks of {title} need {' and '.join(needs)}; this environment supports "
            "only tasks with a prompt and an answer"
        )
    return tasks


def _made(taskset: Any, config: Mapping[str, Any]) -> Any:
    try:
        import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
        from verifiers.v1.utils.generic import concrete_type  # pyright: ignore[reportMissingImports]
        from verifiers.v1.utils.loaders import taskset_class  # pyright: ignore[reportMissingImports]

        if isinstance(taskset, str):
            by_name = ":" in taskset
            kind = registry.load("environments", taskset) if by_name else taskset_class(taskset)
        else:
            kind = taskset
        settings = concrete_type(kind, vf.TasksetConfig, origin=vf.Taskset) or vf.TasksetConfig
        return kind(settings(**{"id": str(taskset), **config}))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"verifiers: taskset {taskset!r} cannot be loaded: {error}") from error


def _needs_runtime(function: Any) -> bool:
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _opening(data: Any) -> list[Message]:
    from verifiers.v1.types import content_text  # pyright: ignore[reportMissingImports]

    system = [Message(data.system_prompt, Role.SYSTEM)] if data.system_prompt else []
    if isinstance(data.prompt, str):
        return [*system, Message(data.prompt)]
    return system + [
        Message(content_text(message.content), Role(message.role)) for message in data.prompt
    ]


def _trace(task: Any, text: str, message: Message) -> Any:
    """The trace of an answer: its messages, and the model call with its usage and its end."""
    import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
    from verifiers.v1.state import state_cls  # pyright: ignore[reportMissingImports]

    trace = vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        state=state_cls(type(task))(),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
    )
    makes = {Role.SYSTEM: vf.SystemMessage, Role.ASSISTANT: vf.AssistantMessage}
    for prompt_part in _opening(task.data):
        _append(
            trace, makes.get(prompt_part.role, vf.UserMessage)(content=prompt_part.content), False
        )
    calls = [_tool_call(call, number) for number, call in enumerate(message.tool_calls)]
    _append(trace, vf.AssistantMessage(content=text, tool_calls=calls or None), True)
    trace.calls.append(_model_call(message, len(trace.nodes) - 1, bool(calls)))
    trace.is_completed = trace.ok = True
    return trace


def _tool_call(call: Mapping[str, Any], number: int) -> Any:
    from verifiers.v1.types import ToolCall  # pyright: ignore[reportMissingImports]

    function = call.get("function", call)
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall(
        id=str(call.get("id") or f"call_{number}"), name=function["name"], arguments=text
    )


def _model_call(message: Message, node: int, has_calls: bool) -> Any:
    from verifiers.v1.trace import ModelCall  # pyright: ignore[reportMissingImports]
    from verifiers.v1.types import Usage  # pyright: ignore[reportMissingImports]

    turn = message.turn
    reason = "tool_calls" if has_calls else "stop"
    usage = None
    if turn is not None:
        reason = "length" if turn.finish_reason == "length" else reason
        sizes = len(turn.prompt_ids), len(turn.completion_ids)
        usage = Usage(prompt_tokens=sizes[0], completion_tokens=sizes[1]) if any(sizes) else None
    return ModelCall(node=node, finish_reason=reason, usage=usage)


def _append(trace: Any, message: Any, sampled: bool) -> None:
    import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

    before = len(trace.nodes) - 1 if trace.nodes else None
    trace.nodes.append(vf.MessageNode(parent=before, message=message, sampled=sampled))


PLUGIN = VerifiersEnvironment
