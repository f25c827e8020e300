"""Tasks of the library reasoning-gym: any of its generators by name, with its score as reward."""

import ast
import copy
import functools
import inspect
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mrlm.core.board import Html
from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.registry import unknown
from mrlm.core.types import Message, Observation, Reward, Role, StepResult, Task
from mrlm.environments.connectors.libraries import needed, said, seed_of
from mrlm.environments.shared.child_process import ChildProcess, TooLate, answering
from mrlm.environments.shared.questions import QuestionEnvironment
from mrlm.environments.shared.rows import at_least, is_held_out
from mrlm.environments.shared.short_answers import tagged

SYSTEM_PROMPT = (
    "Think as long as you need, then put your final answer between <answer> and </answer>."
)
DRAWS = 200
"""Maximum number of problems sampled to find one of the requested split."""
LONGEST = 2_000
"""Maximum number of characters of a value; a tenth of that for an expression."""
MOST_POWER = 1_000
FUNCTIONS = {
    *("sin", "cos", "tan", "exp", "log", "ln", "sqrt", "asin", "acos", "atan", "sinh", "cosh"),
    *("tanh", "sec", "csc", "cot", "pi", "Abs", "Rational"),
}
_TOKEN = re.compile(r"\s+|\d{1,12}(?:\.\d{1,12})?|[A-Za-z]+|\*\*|[-+*/^(),]")
_NAN = re.compile(r"\b(?:nan|inf|infinity)\b", re.IGNORECASE)


ROUNDING = 1e-9
"""Error of a score that is a sum of fractions."""


class ReasoningGymEnvironment(QuestionEnvironment):
    """An environment of questions from a generator of `reasoning_gym`, answered in one or several
    attempts. The return of an episode is the generator's score of its best attempt, from 0 to 1;
    the reward of an attempt is its improvement.

    The library runs in a child process, which is killed when a question or a score takes longer
    than `timeout`. Some of its scorers evaluate an answer as Python; they receive only literals and
    plain mathematics. Any other answer for them, an answer without the tags, one on which the
    scorer raises an error, and one with NaN or infinity is malformed and costs `malformed`.

    Tasks are determined by their id and the library's version. A tenth of the questions is held
    out by their text, so that no seed can leak one.

    Args:
        dataset: name of the generator, such as `chain_sum`.
        config: its settings, such as `{max_terms: 3}`.
        tags: the answer is the text between the last `<answer>` and `</answer>`; `False`: the whole
            message.
        system_prompt: system prompt instead of the built-in one; an empty one is left out. Without
            `tags` there is none by default.
        malformed: penalty of a malformed answer.
        max_attempts: maximum number of answers (alias: `max_turns`).
        timeout: time limit of the library for one question or score, in seconds.
        agents: name of the agent.
        seed: another seed gives other questions for the same task seed.

    Raises:
        ConfigError: the library is not installed, the generator does not exist, or it does not
            accept the settings.
    """

    def __init__(
        self,
        dataset: str,
        config: Mapping[str, Any] | None = None,
        tags: bool = True,
        system_prompt: str | None = None,
        malformed: float = 0.1,
        max_attempts: int | None = None,
        max_turns: int | None = None,
        timeout: float = 10.0,
        agents: str | Sequence[str] = "agent",
        seed: int = 0,
    ) -> None:
        needed("reasoning_gym")
        super().__init__(agents, max_attempts, max_turns)
        at_least(0, malformed=malformed)
        at_least(0.01, timeout=timeout)
        self.dataset = dataset
        self.config: dict[str, Any] = dict(config or {})
        self.tags = tags
        default = SYSTEM_PROMPT if tags else ""
        self.system_prompt: str = default if system_prompt is None else system_prompt
        self.malformed: float = float(malformed)
        self.timeout: float = float(timeout)
        self.seed = seed
        clash = next((name for name in ("seed", "size") if name in self.config), None)
        if clash:
            raise ConfigError(f"reasoning_gym: config.{clash} is set by the environment; remove it")
        reply = self._ask({"check": dataset})
        if "refused" in reply:
            raise ConfigError(f"reasoning_gym: {reply['refused']}")
        self._entry, self._best = 0, 0.0

    def task(self, seed: int, split: Split = "train") -> Task:
        name = f"{self.dataset}-{self.seed}-{split}-{seed}"
        for draw in range(DRAWS):
            entry = seed_of(name, draw)
            row = self._ask({"entry": entry})
            if is_held_out(row["question"]) == (split == "eval"):
                system = [Message(self.system_prompt, Role.SYSTEM)] if self.system_prompt else []
                prompt = [*system, Message(row["question"])]
                return Task(name, prompt, row["answer"], seed, {"entry": entry})
        raise ConfigError(
            f"reasoning_gym: none of {DRAWS} questions of {self.dataset} belongs to the split "
            f"{split!r}; change config so that it yields more different questions"
        )

    def begin(self, task: Task) -> None:
        entry = task.info.get("entry")
        if not isinstance(entry, int):
            raise ConfigError(
                f"reasoning_gym: task {task.id!r} needs info['entry'], the seed of a question"
            )
        self._entry, self._best = entry, 0.0

    def step(self, actions: dict[str, Message]) -> StepResult:
        (agent,) = self.agents
        answer = stated(said(next(iter(actions.values()))), self.tags)
        score = self._score(answer)
        self.note(None if score is None else answer, score == 1.0)
        self._attempts += 1
        over = self._attempts == self.max_attempts or score == 1.0
        gained = max(0.0, (score or 0.0) - self._best)
        self._best += gained
        unread = score is None
        components = {"score": gained, "malformed": float(unread)}
        reward = Reward(gained - self.malformed * unread, components)
        if over:
            return StepResult(rewards={agent: reward}, done=True)
        hint = "Put it between <answer> and </answer>." if self.tags else ""
        words = f"No answer could be read. {hint}" if unread else f"That scores {score:.2f} of 1."
        notice = f"{words.strip()} {self.again}"
        return StepResult({agent: Observation([Message(notice)])}, {agent: reward})

    @property
    def question(self) -> str:
        return self._task.prompt[-1].content if self._task.prompt else ""

    def render(self, agent: str | None = None) -> Html | None:
        """The answers as they were read, and the library's own; not for the agent."""
        if agent is not None:
            return None
        answer = self._task.answer
        return self.attempts_board("" if answer is None else str(answer))

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        """The library's own answer; `None` for generators without one."""
        answer = self._task.answer
        if answer is None:
            return None
        return f"<answer>{answer}</answer>" if self.tags else str(answer)

    def _score(self, answer: str | None) -> float | None:
        """The score of an answer; `None` if it is malformed."""
        if answer is None or not answer or _NAN.search(answer):
            return None
        try:
            score = self._ask({"entry": self._entry, "said": answer})["score"]
        except TooLate:
            return None
        if score is None:
            return None
        nearest = min(max(score, 0.0), 1.0)
        if abs(score - nearest) > ROUNDING:
            raise EpisodeError(f"reasoning_gym: {self.dataset} returned the score {score}")
        return 1.0 if nearest > 1.0 - ROUNDING else nearest

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        defaults = {"dataset": self.dataset, "config": self.config}
        return _library.ask(defaults | request, self.timeout)


def stated(text: str, tags: bool) -> str | None:
    """The answer in a message; `None` if tags are required and missing."""
    return tagged(text) if tags else text.strip()


_library = ChildProcess("mrlm.environments.connectors.reasoning_gym", "reasoning_gym")


# -- in the child ----------------------------------------------------------------------------------


def serve() -> None:
    """Answer questions about the library until the input ends."""
    import reasoning_gym  # pyright: ignore[reportMissingImports]
    from reasoning_gym.factory import DATASETS  # pyright: ignore[reportMissingImports]

    @functools.lru_cache(512)
    def drawn(name: str, config: str, entry: int) -> tuple[Any, dict[str, Any]]:
        made = reasoning_gym.create_dataset(name, **json.loads(config), seed=entry, size=1)
        return made, made[0]

    def checked(name: str, config: dict[str, Any]) -> dict[str, Any]:
        if name not in DATASETS:
            return {"refused": unknown(str(name), sorted(DATASETS), "dataset")}
        try:
            drawn(name, json.dumps(config, sort_keys=True), 0)
        except Exception as error:
            return {"refused": f"dataset {name!r} with config {config!r}: {error}"}
        return {}

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        name, config = request["dataset"], request["config"]
        if "check" in request:
            return checked(name, config)
        made, entry = drawn(name, json.dumps(config, sort_keys=True), request["entry"])
        if "said" in request:
            return {"score": scored(made, copy.deepcopy(entry), request["said"])}
        gold = entry["answer"]
        if gold is None:
            gold = (entry.get("metadata") or {}).get("example_correct_answer")
        return {"question": str(entry["question"]), "answer": None if gold is None else str(gold)}

    answering(answer)


def scored(made: Any, entry: dict[str, Any], answer: str) -> float | None:
    """The library's score of an answer; `None` if the answer is unsafe or malformed."""
    if answer != entry["answer"] and not harmless(type(made).__module__, answer):
        return None
    try:
        score = float(made.score_answer(answer, entry))
    except (Exception, RecursionError, MemoryError):  # scorers raise all kinds of errors
        return None
    return score if math.isfinite(score) else None


def harmless(module: str, answer: str) -> bool:
    """Whether an answer is safe for the scorer in a module of the library."""
    text = source(module)
    if re.search(r"\bparse_expr\b|\bsympify\b", text) and "sympy" in text:
        return is_mathematics(answer)
    return is_literal(answer) if re.search(r"\beval\(", text) else True


@functools.cache
def source(module: str) -> str:
    """The source code of a module."""
    return inspect.getsource(inspect.importlib.import_module(module))  # type: ignore[attr-defined]


# -- answers that are safe to evaluate: literals, and plain mathematics of bounded cost ------------


def is_literal(text: str) -> bool:
    """Whether it is a Python literal, not valid Python (which evaluation rejects), or a word in
    capital letters, which is bound to nothing."""
    if len(text) > LONGEST:
        return False
    if text.isalpha() and text.isupper():
        return True
    try:
        ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return True
    except (RecursionError, MemoryError):
        return False
    try:
        ast.literal_eval(text.strip())
    except (ValueError, TypeError, RecursionError, MemoryError):
        return False
    return True


def is_mathematics(text: str) -> bool:
    """Whether it consists of numbers, variables of one letter, known functions and the four
    operations, with powers that stay small."""
    if len(text) > LONGEST // 10 or "\n" in text:
        return False
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None or (
            token[0].isalpha() and len(token[0]) > 1 and token[0] not in FUNCTIONS
        ):
            return False
        position = token.end()
    try:
        tree = ast.parse(text.strip().replace("^", "**"), mode="eval")
        return power(tree.body) <= MOST_POWER
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def power(node: ast.AST) -> float:
    """The largest product of nested exponents; infinite if one is not a small number."""
    inside = max((power(child) for child in ast.iter_child_nodes(node)), default=1.0)
    if isinstance(node, ast.Call) and not isinstance(node.func, ast.Name):
        return float("inf")
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Pow):
        return inside
    exponent = plain(node.right)
    return float("inf") if exponent is None else inside * max(1.0, abs(exponent))


def plain(node: ast.AST) -> float | None:
    """A number up to 100, or a fraction of such, with or without a sign; a variable counts as 1."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value) if node.value <= 100 else None
    if isinstance(node, ast.Name):
        return 1.0
    if isinstance(node, ast.UnaryOp):
        return plain(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        above, below = plain(node.left), plain(node.right)
        return above if above is not None and below else None
    return None


PLUGIN = ReasoningGymEnvironment
