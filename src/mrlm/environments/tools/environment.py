"""The tool environment: one agent that calls tools over several turns and then states an answer."""

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from mrlm.core.board import Html, shortened, stacked, table
from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError
from mrlm.core.matters import Matters
from mrlm.core.thoughts import stated_text
from mrlm.core.tool_calls import Malformed, ToolCall, answer_in, calls_in, written
from mrlm.core.types import Message, Observation, Reward, Role, StepResult, Task
from mrlm.data.tasks import OnBadRow
from mrlm.environments.shared.questions import QuestionTable
from mrlm.environments.shared.rows import RowTasks, agent_names, built, row_matters, whole_number
from mrlm.environments.tools.builtin_tools import FILES, create_default_tool_registry
from mrlm.environments.tools.generator import KINDS, ToolTaskGenerator
from mrlm.environments.tools.mcp import MCPServer
from mrlm.environments.tools.registry import MAX_OUTPUT, TIMEOUT, Toolbox, ToolRegistry
from mrlm.environments.tools.tasks import (
    ANSWERS,
    GROUPS,
    CallFormat,
    accepted_of,
    generated,
    generator_of,
    instructions,
    problem_of,
    required_of,
    rows_of,
    same_answer,
    stated,
)
from mrlm.environments.tools.tool import ToolError, sayable

REQUIRED, OTHER, UNKNOWN, MALFORMED = 0.3, -0.1, -0.2, -0.1
CORRECT, COVERAGE, SPEED = 0.5, 0.3, 0.2
MOST_DRAWN = 400
"""Characters of a cell of the board."""
MAX_TURNS = 8
MAX_CALLS = 4
"""Maximum number of calls run per message."""
MAX_SECONDS = 30.0
"""Time in seconds after which no further call of a message is started, so that slow calls end with
a message to the model instead of a failed step."""


class ToolUseEnvironment(RowTasks, Environment):
    """An environment of questions that are answered with tools. A message either calls tools, whose
    results are shown, or states the answer, which ends the episode.

    Rewards: 0.3 for the first successful call of each tool that the task requires; -0.1 for a call
    of another tool, -0.2 of an unknown one; -0.1 for a message with a malformed call, or without a
    call and an answer. A right answer gives 0.5, plus 0.3 times the fraction of required tools
    used, plus 0.2 times the fraction of turns left. The rewards for tools never exceed the reward
    of a right answer at the same point of the episode.

    Args:
        registry: the tools; the built-in ones that the tasks need when `None`.
        tasks: a kind of `ToolTaskGenerator` (`arithmetic`, `lookup`, `files`, `mixed`), such a
            generator, or rows with `prompt` (or `question`), `answer` (or a list of accepted
            `answers`) and optionally `required` (names of tools; without it calls are not rewarded)
            and `files` (path -> content): a list, a file or anything else `read_rows` accepts.
        max_turns: messages of an episode.
        eval_tasks: held-out rows; a tenth of the prompts when `None`.
        levels: difficulty of generated tasks, 1 to 4.
        seed: seed of the generator, or of the split.
        tools: groups of built-in tools (`calculator`, `search`, `python`, `files`), instead of a
            registry.
        search: source of `search`, see `create_default_tool_registry`.
        mcp_servers: arguments of `MCPServer`; their tools are added to the registry.
        isolation: isolation of the sandbox for Python.
        call_format: format of calls in the prompt: `tool_call` (JSON in tags), `json` (Llama's),
            `python`, `short` (`python` without names of arguments, an answer is `=42`, without
            explanation: for small models trained on the format), or `native` (the tools are
            described by the chat template). All formats are always accepted.
        max_calls: maximum number of calls run per message.
        max_output: maximum number of characters of a result.
        timeout: time limit of a call in seconds.
        split, columns, on_bad_row: settings of rows.
        agents: name of the agent.

    Raises:
        ConfigError: impossible arguments, or a task that requires an unknown tool.
    """

    reward_range: tuple[float, float] | None = (-0.8, 1.8)
    expert_return: float | None = CORRECT
    alone: Mapping[str, Any] = {"_answers_alone": True}
    matters: ClassVar[Mapping[str, Matters]] = row_matters(
        "tasks", rows=["eval_tasks"], generated=["levels"], kinds=(*KINDS, "mixed")
    )

    _table: QuestionTable | None = None
    _answers_alone = False
    """Whether the expert states the answer at once, without tools."""

    def __init__(
        self,
        registry: ToolRegistry | None = None,
        tasks: Any = "mixed",
        max_turns: int = MAX_TURNS,
        *,
        eval_tasks: Any = None,
        levels: Sequence[int] = (1, 2),
        seed: int = 0,
        tools: Sequence[str] | None = None,
        search: Any = None,
        mcp_servers: Sequence[Mapping[str, Any]] = (),
        isolation: str = "auto",
        call_format: CallFormat = "tool_call",
        max_calls: int = MAX_CALLS,
        max_output: int = MAX_OUTPUT,
        timeout: float = TIMEOUT,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        on_bad_row: OnBadRow = "raise",
        agents: str | Sequence[str] = "agent",
    ) -> None:
        whole_number(1, max_turns=max_turns, max_calls=max_calls, max_output=max_output)
        if isinstance(timeout, bool) or not timeout > 0:
            raise ConfigError(f"timeout must be a number of seconds above 0, not {timeout!r}")
        self.agents: tuple[str, ...] = agent_names(agents, 1)
        self.max_turns: int | None = max_turns
        self.max_calls = max_calls
        self.max_output = max_output
        self.timeout = timeout
        self.call_format: CallFormat = call_format
        self.generator: ToolTaskGenerator | None = generator_of(
            tasks, levels, seed, terse=call_format == "short"
        )
        if self.generator is None:
            held = None if eval_tasks is None else rows_of(eval_tasks)
            settings = (held, split, columns, on_bad_row, seed)
            self._table = QuestionTable(
                "tool tasks", ANSWERS, rows_of(tasks), *settings, problem=problem_of
            )
        if registry is None:
            default = self.generator.groups if self.generator else GROUPS
            groups = default if tools is None else tools
            registry = create_default_tool_registry(groups, search=search, isolation=isolation)
            self.isolation = isolation if "python" in groups else None
        elif tools is not None or search is not None:
            raise ConfigError("environment tools: give either tools and search, or registry")
        self.registry: ToolRegistry = _with_servers(registry, mcp_servers)
        self._begin(Task("none"))

    def task(self, seed: int, split: Split = "train") -> Task:
        if self.generator is not None:
            task = generated(self.generator.problem(seed, split), seed, split)
        else:
            assert self._table is not None
            row = self._table.question(seed, split)
            name = f"tools-{split}-{row.index}"
            task = Task(name, row.messages, row.gold, seed, row.info)
        if self.call_format != "short" and len(task.prompt) == 1:
            native = {"tools": self.registry.schemas} if self.call_format == "native" else {}
            words = instructions(self.registry, self.call_format, self.max_turns or MAX_TURNS)
            task.prompt = [Message(words, Role.SYSTEM, metadata=native), *task.prompt]
        return task

    def spawn(self) -> Self:
        twin = copy.copy(self)
        twin._begin(Task("none"))
        return twin

    def _begin(self, task: Task) -> None:
        self._task = task
        self._required: list[str] | None = required_of(task)
        self._plan: list[Any] = task.info.get("plan") or []
        self._used: set[str] = set()
        self._earned = 0.0
        self._turn = 0
        self._planned = 0
        self._over = False
        self._log: tuple[tuple[int, str, str, str], ...] = ()
        """Turn, call, its result, and whether that is good or bad."""
        self._box: Toolbox | None = None

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        task = task or self.task(seed or 0)
        if task.answer is None:
            raise ConfigError(f"environment tools: task {task.id!r} has no answer")
        self.close()
        self._begin(task)
        for name in self._required or ():
            if name not in self.registry:
                unknown = self.registry.unknown(name)
                raise ConfigError(f"task {task.id!r} requires a tool: {unknown}")
        box = Toolbox if self._answers_alone else ToolRegistry.open
        self._box = box(self.registry, self.timeout, self.max_output)
        if task.info.get("files"):
            self._place_files(task.info["files"])
        return StepResult({self.agents[0]: Observation(list(task.prompt))})

    def _place_files(self, files: Mapping[str, str]) -> None:
        kits = (tool.kit for tool in self.registry if tool.kit is not None)
        kit = next((kit for kit in kits if kit.name == FILES), None)
        if kit is None or self._box is None:
            raise ConfigError(
                f"task {self._task.id!r} has files, but no tool reads files; add the group files"
            )
        workspace = self._box.state(kit)
        for path, content in files.items():
            try:
                workspace.write_file(str(path), str(content))
            except ToolError as error:
                raise ConfigError(f"task {self._task.id!r}, file {path!r}: {error}") from error

    async def step(self, actions: dict[str, Message]) -> StepResult:
        if self._box is None:
            raise ConfigError("environment tools: call reset before step")
        try:
            result = await self._answered(stated_text(next(iter(actions.values()))), self._box)
        except BaseException:
            await self._box.close()
            raise
        if result.done:
            await self._box.close()
        return result

    async def _answered(self, text: str, box: Toolbox) -> StepResult:
        self._turn += 1
        rewards: dict[str, float] = {}
        calls = calls_in(text)
        if calls:
            until = time.monotonic() + MAX_SECONDS
            outputs = [
                await self._called(call, box, rewards, until) for call in calls[: self.max_calls]
            ]
            for call, words in zip(calls, outputs, strict=False):
                self._note(_drawn(call), words, "bad" if words.startswith("error: ") else "")
            if len(calls) > self.max_calls:
                outputs.append(self._malformed(f"only {self.max_calls} calls were run", rewards))
        else:
            answer = answer_in(text)
            if answer is not None:
                return self._ended(answer)
            outputs = [self._malformed("there is neither a call nor an answer", rewards)]
            self._note("", outputs[0], "bad")
        self._over = self._turn >= (self.max_turns or MAX_TURNS)
        messages = [Message(sayable(words), Role.TOOL) for words in outputs]
        return self._result(messages, rewards)

    async def _called(
        self, call: ToolCall | Malformed, box: Toolbox, rewards: dict[str, float], until: float
    ) -> str:
        """Run a call; returns its text for the agent, and adds its rewards to `rewards`."""
        if isinstance(call, Malformed):
            return self._malformed(call.reason, rewards)
        tool = self.registry.get(call.name)
        if tool is None:
            _add(rewards, "unknown_tool", UNKNOWN)
            return f"error: {self.registry.unknown(call.name)}"
        try:
            arguments = tool.arguments(call.arguments, call.positional)
        except ToolError as error:
            return self._malformed(str(error), rewards)
        if self._required is not None and tool.name not in self._required:
            _add(rewards, "other_tool", OTHER)
        if time.monotonic() > until:
            return "error: the calls before it took too long"
        try:
            words = await box.call(tool, arguments)
        except ToolError as error:
            return f"error: {error}"
        if tool.name in (self._required or ()) and tool.name not in self._used:
            self._used.add(tool.name)
            pay = min(REQUIRED, CORRECT + COVERAGE * self._coverage - self._earned)
            self._earned += pay
            _add(rewards, "required_tool", pay)
        if self._plan[self._planned : self._planned + 1] == [[tool.name, arguments]]:
            self._planned += 1
        return words

    def _malformed(self, reason: str, rewards: dict[str, float]) -> str:
        rewards["bad_format"] = MALFORMED  # once per message
        return f"error: {reason}"

    def _ended(self, answer: str) -> StepResult:
        self._over = True
        right = same_answer(answer, accepted_of(self._task.answer))
        self._note("answer", answer, "good" if right else "bad")
        if not right:
            return self._result([Message("That is not correct.")], {"solved": 0.0})
        left = 1.0 - self._turn / (self.max_turns or MAX_TURNS)
        rewards = {"correct": CORRECT, "coverage": COVERAGE * self._coverage, "speed": SPEED * left}
        return self._result([Message("That is correct.")], {**rewards, "solved": 1.0})

    def _result(self, messages: list[Message], rewards: dict[str, float]) -> StepResult:
        value = sum(amount for name, amount in rewards.items() if name != "solved")
        if self._over:
            rewards = {"solved": 0.0, **rewards, "turns": float(self._turn)}
        (agent,) = self.agents
        seen = Observation(messages, done=self._over)
        return StepResult({agent: seen}, {agent: Reward(value, rewards)}, done=self._over)

    def _note(self, call: str, result: str, kind: str) -> None:
        call, result = shortened(call, MOST_DRAWN), shortened(result, MOST_DRAWN)
        self._log = (*self._log, (self._turn, call, result, kind))

    def render(self, agent: str | None = None) -> Html | None:
        """The calls with their results, and the accepted answer; not for the agent."""
        if agent is not None:
            return None
        accepted = " or ".join(map(str, accepted_of(self._task.answer)))
        rows = [(turn, call, (result, kind)) for turn, call, result, kind in self._log]
        drawn = table(rows, ("turn", "call", "result")) if rows else ""
        return stacked(drawn, shortened(f"reference: {accepted}", MOST_DRAWN))

    @property
    def _coverage(self) -> float:
        """Fraction of the required tools that were used."""
        return len(self._used) / len(self._required) if self._required else 1.0

    def state(self) -> str:
        question = self._task.info.get("question", "")
        used = ", ".join(sorted(self._used)) or "no tool"
        return f"{question}\nturn {self._turn + 1} of {self.max_turns}; used: {used}"

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        if self._answers_alone:
            return stated(accepted_of(self._task.answer)[0], self.call_format)
        if "plan" not in self._task.info:
            return None
        if self._planned < len(self._plan):
            name, arguments = self._plan[self._planned]
            form = "tool_call" if self.call_format == "native" else self.call_format
            return written(name, arguments, form)
        return stated(self._task.answer, self.call_format)

    def close(self) -> None:
        if self._box is not None:
            self._box.close_now()


def _drawn(call: ToolCall | Malformed) -> str:
    if isinstance(call, Malformed):
        return "malformed"
    parts = [*map(repr, call.positional), *(f"{k}={v!r}" for k, v in call.arguments.items())]
    return f"{call.name}({', '.join(parts)})"


def _add(rewards: dict[str, float], name: str, amount: float) -> None:
    rewards[name] = rewards.get(name, 0.0) + amount


def _with_servers(registry: ToolRegistry, servers: Sequence[Mapping[str, Any]]) -> ToolRegistry:
    if servers:
        registry = ToolRegistry(registry)
        for server in servers:
            built(MCPServer, server, "mcp_servers").join(registry)
    if not len(registry):
        raise ConfigError("registry: it is empty; register at least one tool")
    return registry
