"""The code environment: one agent, a programming problem, several attempts, and a reward for the
tests that pass. Code runs only in a sandbox."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from mrlm.core.board import Html
from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError
from mrlm.core.matters import Matters
from mrlm.core.thoughts import stated_text
from mrlm.core.types import Message, Reward, StepResult, Task
from mrlm.data.tasks import OnBadRow
from mrlm.environments.programs.code.answers import extract_code, fenced, refusal
from mrlm.environments.programs.code.formats import converted
from mrlm.environments.programs.code.generator import CodeProblemGenerator
from mrlm.environments.programs.code.grading import CodeGrader, patient
from mrlm.environments.programs.code.problems import PROBLEM, CodeProblem
from mrlm.environments.programs.code.scoring import UNUSABLE, feedback, test_board, worth
from mrlm.environments.programs.writers import INSTRUCTION, problem_of
from mrlm.environments.shared.generators import attempts
from mrlm.environments.shared.questions import QuestionEnvironment
from mrlm.environments.shared.rows import RowTable, built, others, row_matters, whole_number
from mrlm.sandbox.grading import GradingVerdict
from mrlm.sandbox.types import Limits, Sandbox

COMPONENTS = ("passed", "all_passed", "raised")


class CodeExecutionEnvironment(QuestionEnvironment):
    """An environment of programming problems whose answers are tested in a sandbox.

    The score of an answer is the fraction of tests it passes, plus 1 if it passes all, minus 0.5 if
    any raises an error or times out: from -0.5 to 2. The return of an episode is the score of its
    **last** answer: the reward of an attempt is the change of the score since the previous one.
    Thus a deliberately failed attempt only delays the reward of a correct one, and with any
    discount reduces it; ending early never keeps more than the last score. Components are
    differences in the same way, so that their sums over an episode describe the last answer;
    `attempt` counts attempts.

    Args:
        generator_or_dataset: a `CodeProblemGenerator`, its arguments as a mapping, or a data set.
        timeout: seconds for every test, possibly fractional.
        max_attempts: maximum number of answers; the agent receives feedback after each.
        generator: the first argument under its name in a config.
        dataset: the first argument as rows of HumanEval (`prompt`, `entry_point`, `test`), MBPP
            (`text` or `prompt`, `test_list`) or APPS (`question`, `input_output`); anything
            `read_rows` accepts.
        eval_dataset: held-out rows; a tenth of the prompts of `dataset` when `None`.
        split, columns, on_bad_row: settings of rows, see `RowTable`.
        difficulty_range, families: arguments of the generator, if none is given.
        seed: seed of the generator and of the split.
        num_visible: tests of a row shown in its question (HumanEval's cannot be shown).
        max_tests: tests of a row that are used.
        test_timeout: replaces `timeout` in configs, where `timeout` is the time of a whole step.
        max_turns: alias of `max_attempts`.
        isolation: isolation of the code: `auto`, or a kind of sandbox, optionally with arguments,
            as in `open_sandbox`.
        sandbox: an open sandbox, instead of `isolation`.
        instruction: text after the question; none if empty.
        agents: name of the agent.
    """

    title: str = "code"
    blocking: bool = False  # steps are coroutines, and everything else is fast
    reward_range: tuple[float, float] | None = (-0.5, 2.0)
    expert_return: float | None = 2.0
    slow_proof = True
    _table: RowTable | None = None
    matters: ClassVar[Mapping[str, Matters]] = row_matters(
        "dataset", "generator_or_dataset", rows=["num_visible", "max_tests"]
    )

    def __init__(
        self,
        generator_or_dataset: Any = None,
        timeout: float = 5.0,
        max_attempts: int | None = None,
        *,
        generator: CodeProblemGenerator | Mapping[str, Any] | None = None,
        dataset: Any = None,
        eval_dataset: Any = None,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        on_bad_row: OnBadRow = "raise",
        difficulty_range: Sequence[int] | None = None,
        families: Sequence[str] | None = None,
        seed: int | None = None,
        num_visible: int = 1,
        max_tests: int = 20,
        test_timeout: float | None = None,
        max_turns: int | None = None,
        isolation: str | Mapping[str, Any] = "auto",
        sandbox: Sandbox[Any] | None = None,
        instruction: str = INSTRUCTION,
        agents: str | Sequence[str] = "agent",
    ) -> None:
        sources = [s for s in (generator_or_dataset, generator, dataset) if s is not None]
        drawn = {"difficulty_range": difficulty_range, "families": families}
        drawn = {name: value for name, value in drawn.items() if value is not None}
        if len(sources) > 1 or (sources and drawn):
            raise ConfigError(
                "environment code: give only one of generator, dataset, and difficulty_range with "
                "families; the last two are arguments of the generator"
            )
        whole_number(0, num_visible=num_visible)
        whole_number(1, max_tests=max_tests)
        super().__init__(agents, attempts(max_attempts, max_turns, default=3))
        self.limits: Limits = Limits(wall=timeout if test_timeout is None else test_timeout)
        self.alone = {"limits": patient(self.limits)}
        self.instruction = instruction
        self._bench = CodeGrader(isolation, sandbox)
        self.isolation: str | Mapping[str, Any] | None = isolation if sandbox is None else None
        self.generator: CodeProblemGenerator | None = None
        source = sources[0] if sources else drawn
        if isinstance(source, CodeProblemGenerator | Mapping):
            self.generator = _generator(source, seed)
        else:
            convert = partial(converted, num_visible=num_visible, max_tests=max_tests)
            settings = (eval_dataset, split, columns, on_bad_row, seed or 0)
            self._table = RowTable(source, *settings, convert=convert)

    def task(self, seed: int, split: Split = "train") -> Task:
        if self.generator is not None:
            problem = self.generator.problem(seed, split)
            name = f"code-{self.generator.seed}-{split}-{seed}"
            return self._task_of(name, problem, seed, {})
        assert self._table is not None
        index, row = self._table.row(seed, split)
        name = f"code-{split}-{index}"
        return self._task_of(name, CodeProblem.of(row[PROBLEM], name), seed, others(row))

    def _task_of(self, name: str, problem: CodeProblem, seed: int, info: Mapping[str, Any]) -> Task:
        prompt = f"{problem.question}\n{self.instruction}".strip()
        labels = {"family": problem.family, "difficulty": problem.difficulty}
        more = {**info, **labels, PROBLEM: problem.record()}
        return Task(name, [Message(prompt)], problem.solution, seed, more)

    def begin(self, task: Task) -> None:
        self._problem: CodeProblem = problem_of(task, CodeProblem, "code")
        self._paid: dict[str, float] = {}
        self._verdicts: list[GradingVerdict] = []

    async def step(self, actions: dict[str, Message]) -> StepResult:
        code = extract_code(stated_text(next(iter(actions.values()))))
        reason = refusal(code)
        self._verdicts = []
        if reason:
            scores, words = UNUSABLE, f"The code was not run: {reason}."
        else:
            program, offset = self._problem.program(code)
            verdicts = await self._bench.test(self._problem, program, self.limits)
            scores, self._verdicts = worth(verdicts), verdicts
            words = "All tests pass."
            if not scores["all_passed"]:
                words = await self._told(verdicts, program, offset)
        self._attempts += 1
        over = bool(scores["all_passed"]) or self._attempts >= self.max_attempts
        if not over:
            words += f"\n{self.again}"
        return self.answered(words, self._reward(scores), over)

    async def _told(self, verdicts: Sequence[GradingVerdict], program: str, offset: int) -> str:
        """Feedback for a wrong answer."""
        problem = self._problem
        if problem.examples and self._attempts + 1 < self.max_attempts:
            seen = await self._bench.test(problem.of_examples, program, self.limits)
            if not all(verdict.passed for verdict in seen):
                return feedback(problem.of_examples, seen, offset)
        return feedback(problem, verdicts, offset)

    def _reward(self, scores: Mapping[str, float]) -> Reward:
        """The change of the score and of all components since the previous attempt."""
        gained = {name: value - self._paid.get(name, 0.0) for name, value in scores.items()}
        self._paid = dict(scores)
        components = {name: gained[name] for name in COMPONENTS} | {"attempt": 1.0}
        return Reward(gained["value"], components, {"answer": dict(scores)})

    def render(self, agent: str | None = None) -> Html | None:
        """The last answer's results in the visible tests, and the number of hidden ones that it
        passes; not for the agent, whose feedback says less."""
        return None if agent is not None else test_board(self._problem, self._verdicts)

    @property
    def question(self) -> str:
        return self._problem.question

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        solution = self._problem.solution
        return None if solution is None else fenced(solution)


def _generator(
    setting: CodeProblemGenerator | Mapping[str, Any], seed: int | None
) -> CodeProblemGenerator:
    if isinstance(setting, CodeProblemGenerator):
        if seed is not None:
            raise ConfigError("seed: set it in the generator, or remove generator")
        return setting
    arguments = dict(setting)
    if seed is not None:
        if "seed" in arguments:
            raise ConfigError("seed is also set in the generator; remove one of them")
        arguments["seed"] = seed
    return built(CodeProblemGenerator, arguments, "generator")
