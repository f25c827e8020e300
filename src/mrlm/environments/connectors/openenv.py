"""Environments behind an OpenEnv server, with one session per episode and actions by the server's
schema."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.environments.connectors.libraries import LibraryEnvironment, called, finite, said
from mrlm.environments.connectors.spaces import shown
from mrlm.environments.shared.rows import agent_names, at_least

OWN = ("done", "reward", "metadata")
"""Fields of an observation that are not shown."""
INVALID = object()
"""Marks an answer that is no value, since `None` is one."""
MOST_BYTES = 16 << 20
"""Maximum size of a message of the server, in bytes."""


class OpenEnvEnvironment(LibraryEnvironment):
    """An environment of an OpenEnv server with one agent. The reward of a step is that of the
    observation.

    Answers are parsed by the schema that the server publishes: for an action with one field, the
    answer is that field's text or number; for several fields, a JSON object. An answer that cannot
    be parsed, or that the server rejects, costs `malformed` and a turn; the agent sees the reason
    and may answer again. If the server fails or is full, the episode ends with an error and has no
    reward.

    Each episode has its own session, so that all concurrent episodes (tasks times siblings) must
    fit into the server's `max_concurrent_envs`. `reset` sends the seed of the task; reproducibility
    depends on the server and is tested by `check_environment`. Training tasks have even seeds,
    held-out ones odd seeds.

    Args:
        url: URL of the server, such as `http://127.0.0.1:8000`.
        reset: further arguments of `reset`.
        field: the field that an answer sets, if an action has several; the others keep their
            defaults.
        render: function `f(observation) -> str` of the observation as a dictionary, in a config
            `module:function`; by default all its fields.
        instructions: first message to the agent; by default a description of actions.
        malformed: penalty of an answer that is not an action; choose more than the cost of a step.
        max_turns: answers after which an episode is truncated.
        timeout: time limit of the server for one answer, in seconds.
        agents: name of the agent.
        seed: another seed gives other tasks for the same task seed.

    Raises:
        ConfigError: the library is not installed, the server cannot be reached, or its actions do
            not have the field.
    """

    library = "openenv"

    def __init__(
        self,
        url: str,
        reset: Mapping[str, Any] | None = None,
        field: str | None = None,
        render: str | Callable[[dict[str, Any]], str] | None = None,
        instructions: str | None = None,
        malformed: float = 0.1,
        max_turns: int = 32,
        timeout: float = 30.0,
        agents: str | Sequence[str] = "agent",
        seed: int = 0,
    ) -> None:
        super().__init__(url.rstrip("/"), reset, seed, max_turns)
        at_least(0, malformed=malformed)
        at_least(0.01, timeout=timeout)
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"openenv: url must begin with http:// or https://, not {url!r}")
        self.url: str = self.id
        self._drawing: str | Callable[[dict[str, Any]], str] | None = render
        self.malformed: float = float(malformed)
        self.timeout: float = float(timeout)
        self.agents: tuple[str, ...] = agent_names(agents, 1)
        self.fields: dict[str, Any] = self._fields()
        only = next(iter(self.fields)) if len(self.fields) == 1 else None
        if field is not None and field not in self.fields:
            names = ", ".join(self.fields) or "none"
            raise ConfigError(
                f"openenv {url}: actions have no field {field!r}; their fields are {names}"
            )
        self.field: str | None = field or only
        self.instructions: str = self._explained() if instructions is None else instructions
        self.opening: str = self.instructions
        self._series: str = "openenv"
        self._first = 0.0
        """Reward of the reset, which the first action receives."""

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._begin(task, seed)
        if self._env is None:
            self._env = self._made()
        begun = self._restart()
        text = self._shown(begun.observation)
        opening = "\n".join(part for part in (self.instructions, text) if part)
        seen = Observation([Message(opening)], done=bool(begun.done))
        self._first = finite(begun.reward or 0.0, self._where)
        return StepResult({self.agents[0]: seen}, done=bool(begun.done))

    def _restart(self) -> Any:
        return called(self._where, self._env.reset, seed=self._seed, **self.options)

    def step(self, actions: dict[str, Message]) -> StepResult:
        (agent,) = self.agents
        self._steps += 1
        over = self._out_of_time
        action, notice = self._action(said(actions.get(agent)))
        answer = None
        if action is not None:
            try:
                answer = self._env.step(action)
            except Exception as error:
                if "VALIDATION_ERROR" not in str(error):
                    raise EpisodeError(f"{self._where} failed: {error}"[:500]) from error
                notice = f"That is no action: {' '.join(str(error).split())[:300]}"
        if answer is None:
            reward = Reward(-self.malformed, {"reward": 0.0, "malformed": 1.0})
            seen = Observation([Message(notice)])
            return StepResult({} if over else {agent: seen}, {agent: reward}, truncated=over)
        self._done.append(action or {})
        value = finite(answer.reward or 0.0, self._where) + self._first
        self._first = 0.0
        rewards = {agent: Reward(value, {"reward": value, "malformed": 0.0})}
        text = self._shown(answer.observation)
        if answer.done or over:
            return StepResult(rewards=rewards, done=bool(answer.done), truncated=not answer.done)
        return StepResult({agent: Observation([Message(text)])}, rewards)

    def _action(self, text: str) -> tuple[dict[str, Any] | None, str]:
        """The action in an answer, or `None` and the reason of refusal."""
        if self.field is not None:
            value = _value(text, self.fields[self.field])
            if value is INVALID:
                return None, f"That is no {_kind(self.fields[self.field])}."
            return {self.field: value}, ""
        start, end = text.find("{"), text.rfind("}")
        try:
            action = json.loads(text[start : end + 1]) if 0 <= start < end else None
        except (ValueError, RecursionError):
            action = None
        if not isinstance(action, dict):
            return None, f"That is no JSON object. {self._explained()}"
        stray = next((name for name in action if name not in self.fields), None)
        if stray is not None:
            return None, f"An action has no field {stray[:40]!r}. {self._explained()}"
        return action, ""

    def _shown(self, observation: Any) -> str:
        seen = dict(observation) if isinstance(observation, Mapping) else {"": observation}
        if self._drawing is not None:
            self._text = self._user_text(seen)
            return self._text
        fields = {name: value for name, value in seen.items() if name not in OWN}
        plain = {
            name: shown(value) if isinstance(value, str | int | float) else json.dumps(value)
            for name, value in fields.items()
        }
        lines = [f"{name}: {text}" for name, text in plain.items()]
        self._text = next(iter(plain.values())) if len(plain) == 1 else "\n".join(lines)
        return self._text

    def _explained(self) -> str:
        if self.field is not None:
            about = self.fields[self.field].get("description")
            return f"Answer with one {_kind(self.fields[self.field])}" + (
                f": {about}." if about else "."
            )
        names = ", ".join(f'"{name}": {_kind(kind)}' for name, kind in self.fields.items())
        return f"Answer with a JSON object: {{{names}}}."

    def _made(self) -> Any:
        from openenv.core import GenericEnvClient  # pyright: ignore[reportMissingImports]

        client = GenericEnvClient(base_url=self.url, message_timeout_s=self.timeout).sync()
        called(self._where, client.connect)
        return client

    def _fields(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"{self.url}/schema", timeout=self.timeout) as reply:
                schema = json.loads(reply.read(MOST_BYTES))["action"]
        except (OSError, ValueError, KeyError, urllib.error.URLError) as error:
            raise ConfigError(
                f"openenv: {self.url}/schema cannot be read ({error}); is the server running?"
            ) from error
        definitions = schema.get("$defs", {})
        fields = {
            name: kind for name, kind in schema.get("properties", {}).items() if name not in OWN
        }
        return {
            name: definitions.get(str(kind.get("$ref", "")).rsplit("/", 1)[-1], kind)
            for name, kind in fields.items()
        }


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return f"of {', '.join(map(str, schema['enum']))}"
    words = {"integer": "whole number", "string": "text", "boolean": "true or false"}
    kind = str(schema.get("type", "value"))
    return words.get(kind, kind)


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """An answer as the value of a field, text with its white space; `INVALID` if it is not one."""
    kind = schema.get("type")
    stripped = text.strip()
    if "enum" in schema:
        return next((one for one in schema["enum"] if str(one) == stripped), INVALID)
    if kind == "string" or (kind is None and "anyOf" not in schema):
        return text
    try:
        value = json.loads(stripped)
    except (ValueError, RecursionError):
        return INVALID
    types = {"integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}
    expected = types.get(str(kind))
    if isinstance(value, bool) and kind in ("integer", "number"):
        return INVALID
    return value if expected is None or isinstance(value, expected) else INVALID


PLUGIN = OpenEnvEnvironment
