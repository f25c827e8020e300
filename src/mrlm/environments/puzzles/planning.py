"""Base class of planning puzzles: one agent makes the moves, or a planner proposes them and an
executor decides which are carried out, in several rounds."""

import random
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from mrlm.core.board import Html, stacked
from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError
from mrlm.core.registry import unknown
from mrlm.core.thoughts import stated_by
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.environments.shared.games import Style, Teaches
from mrlm.environments.shared.generators import first_of
from mrlm.environments.shared.rows import RowTasks, agent_names, is_number
from mrlm.environments.shared.short_answers import tagged

ALONE, TEAM = ("player",), ("planner", "executor")
MAX_TEXT = 2_000
"""Characters of an answer (of its `<answer>` tag, if it has one) that are read."""
NOTHING = "-"
"""A proposal that could not be read, in the short style."""

Levels = tuple[Mapping[str, float], ...]
Moves = Sequence[str]


class Puzzle:
    """The part of a planning environment that a puzzle defines: its levels, texts and rules."""

    levels: ClassVar[Levels]
    bounds: ClassVar[Mapping[str, tuple[float, float]]]
    """Setting -> smallest and largest value; whole numbers if both are."""
    label: ClassVar[str]
    """First part of the names of tasks."""
    rules: ClassVar[str]
    """Explanation of the puzzle and of the answers, in the full style."""
    example: ClassVar[str]
    """Moves, as an example of an answer."""
    divider: ClassVar[str] = ""
    """Text between moves."""
    lasting: ClassVar[bool] = False
    """Whether a move that was not possible remains so."""

    size: int
    """Number of rows and columns."""
    start: str
    """The board at the start of the episode."""

    def check(self) -> None:
        """Raise `ConfigError` where settings exclude each other."""

    def generated(self, rng: random.Random) -> str:
        """A board that can be solved in all rounds."""
        raise NotImplementedError

    def key(self, board: str) -> str:
        """A text that is equal for boards of which either all or none are held out."""
        return board

    def problem(self, board: str) -> str | None:
        """The fault of the board of a task, or `None`."""
        raise NotImplementedError

    def read(self, text: str) -> list[str] | None:
        """The moves of an answer, or `None` if it is anything but moves."""
        raise NotImplementedError

    def carried(self, board: str, moves: Moves) -> tuple[str, list[str], list[str]]:
        """The board after moves, those that were carried out, and those that were not possible."""
        raise NotImplementedError

    def value(self, board: str) -> float:
        """Value of a board, from -1 to 1: 0 at the start, 1 if and only if it is solved."""
        raise NotImplementedError

    def lost(self, board: str) -> bool | None:
        """Whether a board can no longer be solved, which ends the episode; `None` if none can get
        there."""
        return None

    def best(self, board: str) -> list[str]:
        """The moves of a best solution."""
        raise NotImplementedError

    def anything(self, board: str, rng: random.Random) -> list[str]:
        """Possible moves, at least one."""
        raise NotImplementedError

    def touched(self, board: str, moves: Moves) -> list[int]:
        """Indices of the cells that the moves visit or fill, while they are possible."""
        raise NotImplementedError

    def picture(self, last: Sequence[int], proposed: Sequence[int]) -> Html:
        """A drawing of the board, with cells of the last moves and of the proposal."""
        raise NotImplementedError

    def left(self) -> str:
        """Distance to the solution in words, for spectators."""
        raise NotImplementedError


class PlanningEnvironment(Puzzle, RowTasks, Environment):
    """A puzzle with one right end, which is solved in rounds by one agent or by two.

    With one agent its moves are carried out. With two, the planner proposes moves, the executor
    sees them beside the board and decides which are carried out (the roles of the planning tasks of
    arXiv 2510.11062). Every observation is a new conversation with the current board, so that the
    number of prompt tokens grows linearly with the rounds.

    A board has a value from -1 to 1, which is 0 at the start and 1 where the puzzle is solved. The
    dense reward of an answer is the change of this value, less `illegal` for every mistake: a
    proposal is scored as if it were carried out, and the executor's answer by the difference to the
    proposal. The team's return is thus the value of the last board less the penalties, independent
    of the proposals, and every joint step has a score of its own, as trees of episodes need.

    A subclass sets the attributes of `Puzzle` and implements its methods. Boards
    are texts of `size * size` characters, row by row.

    Args:
        level: difficulty, from 1 (short prompts and answers, for models of a few 100,000 weights).
        settings: settings that differ from those of the level. In all puzzles `size` is the number
            of rows, `moves` the most of an answer, and `rounds` the number of rounds.
        num_agents: 1: one agent alone; 2: planner and executor.
        agents: names of the agents; `player`, or `planner` and `executor`.
        reward: `dense` as above, or `sparse`: 1 when the puzzle is solved, and nothing else.
        share: `team`: every agent gets the reward of every answer; `own`: the agent that answered.
            The team's reward of a step, a mean over agents, is the same.
        illegal: penalty of a mistake: an answer that cannot be read, or an impossible move.
        teaches: answers of `expert`: the `best` ones, or `any` moves, which demonstrate the format.
        style: `full` explains the puzzle and expects the moves in `<answer>` tags or alone; `short`
            is the board in one line.
        seed: another seed gives other puzzles for the same task seed.

    Raises:
        ConfigError: an unknown level or setting, or a value out of its range.
    """

    def __init__(
        self,
        level: int = 1,
        settings: Mapping[str, int | float] | None = None,
        num_agents: int = 2,
        agents: str | Sequence[str] | None = None,
        reward: Literal["dense", "sparse"] = "dense",
        share: Literal["team", "own"] = "team",
        illegal: float = 0.1,
        teaches: Teaches = "best",
        style: Style = "full",
        seed: int = 0,
    ) -> None:
        if num_agents not in (1, 2):
            raise ConfigError(f"num_agents must be 1, or 2 for a team,, not {num_agents!r}")
        if not is_number(illegal) or illegal < 0:
            raise ConfigError(f"illegal must be a finite number of at least 0, not {illegal!r}")
        self.agents: tuple[str, ...] = agent_names(
            agents or (ALONE, TEAM)[num_agents - 1], num_agents
        )
        self.settings: dict[str, float] = self._chosen(level, settings or {})
        self.size: int = int(self.settings["size"])
        self.moves: int = int(self.settings["moves"])
        self.rounds: int = int(self.settings["rounds"])
        self.check()
        self.max_turns: int | None = self.rounds * num_agents
        self.level = level
        self.reward = reward
        self.share = share
        self.illegal: float = float(illegal)
        self.teaches: Teaches = teaches
        self.style: Style = style
        self.seed = seed
        self.start, self.board = "", ""
        self._key, self._round, self._value, self._over = "", 0, 0.0, False
        self._proposal: tuple[str, ...] | None = None
        self._last: tuple[str, list[str]] | None = None
        """The board before the last moves that were carried out, and these moves."""
        self._failed: list[str] = []
        self._unread = False

    # -- tasks -------------------------------------------------------------------------------------

    def task(self, seed: int, split: Split = "train") -> Task:
        values = "-".join(f"{self.settings[name]:g}" for name in self.bounds)
        name = f"{self.label}-{values}-{self.seed}-{split}-{seed}"
        rng = random.Random(name)
        board = first_of(split, lambda: self.generated(rng), self.key)
        return Task(name, [Message(self.lines(board))], seed=seed, info={"board": board})

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        task = task or self.task(seed or 0)
        board = str(task.info.get("board", ""))
        if len(board) != self.size**2:
            wrong = f"it must be a text of {self.size} x {self.size} characters"
        else:
            wrong = self.problem(board)
        if wrong is not None:
            raise ConfigError(f"{self.label}: task {task.id!r}, info['board']: {wrong}")
        self.start = self.board = board
        self._key, self._round, self._value, self._over = task.id, 0, 0.0, False
        self._proposal = self._last = None
        self._failed, self._unread = [], False
        return StepResult(self._asked())

    # -- play --------------------------------------------------------------------------------------

    @property
    def acting(self) -> int:
        """Index of the agent that acts next."""
        return 0 if self._proposal is None else 1

    def step(self, actions: dict[str, Message]) -> StepResult:
        agent = self.agents[self.acting]
        text = stated_by(actions, agent)
        answer = tagged(text) or text
        moves = self.read(answer.strip()) if len(answer) <= MAX_TEXT else None
        chosen_moves = tuple((moves or ())[: self.moves])
        board, done, failed = self.carried(self.board, chosen_moves)
        mistakes = len(failed) + (moves is None)
        value = self.value(board)
        gain, self._value = value - self._value, value
        components = {"mistakes": float(mistakes)}
        proposing = len(self.agents) == 2 and self._proposal is None
        if proposing:
            self._proposal = chosen_moves
        else:
            self._last = (self.board, done)
            self.board, self._proposal, self._round = board, None, self._round + 1
            self._failed = [*(self._failed if self.lasting else []), *failed]
            self._unread = moves is None
            lost = self.lost(board)
            self._over = value == 1.0 or bool(lost) or self._round == self.rounds
            components |= {"solved": float(value == 1.0), "moves": float(len(done))}
            components |= {} if lost is None else {"dead": float(lost)}
        amount = gain - self.illegal * mistakes
        if self.reward == "sparse":
            amount = 0.0 if proposing else components["solved"]
        receivers = self.agents if self.share == "team" else (agent,)
        rewards = {name: Reward(amount, dict(components)) for name in receivers}
        return StepResult({} if self._over else self._asked(), rewards, done=self._over)

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        if self._over or agent != self.agents[self.acting]:
            return None
        drawn = random.Random(f"{self._key}/{self._round}/{agent}")
        best = self.teaches == "best"
        moves = self.best(self.board) if best else self.anything(self.board, drawn)
        text = self.divider.join(moves[: self.moves])
        return text if self.style == "short" else f"<answer>{text}</answer>"

    def state(self) -> str:
        suffix = "" if self._proposal is None else f"\nproposal: {self._written(self._proposal)}"
        return f"{self.lines(self.board)}\nround {self._round + 1} of {self.rounds}{suffix}"

    def render(self, agent: str | None = None) -> Html:
        """The board with the last moves and the proposal; for spectators also the distance."""
        last = [] if self._last is None else self.touched(*self._last)
        proposed = self.touched(self.board, self._proposal or ())
        drawing = self.picture(last, proposed)
        if self._over:
            words = "solved" if self.value(self.board) == 1.0 else "not solved"
        else:
            words = f"round {self._round + 1} of {self.rounds}, {self.agents[self.acting]} to act"
        if self._proposal is not None:
            words += f"; {self.agents[0]} proposes {self._written(self._proposal)}"
        moved = ""
        if self._last is not None:
            moved = f"last moves: {self._written(self._last[1])}"
        return stacked(words, moved, self.left() if agent is None else "", drawing)

    # -- texts -------------------------------------------------------------------------------------

    def lines(self, board: str) -> str:
        """A board as the agents see it: in one line in the short style."""
        rows = [board[at : at + self.size] for at in range(0, len(board), self.size)]
        if self.style == "short":
            return "/".join(rows)
        return "\n".join(" ".join(row) for row in rows)

    def _written(self, moves: Moves) -> str:
        return self.divider.join(moves) or NOTHING

    def _asked(self) -> dict[str, Observation]:
        """The observation of the agent that acts next."""
        board, proposal = self.lines(self.board), self._proposal
        if self.style == "short":
            text = f"{board}?" if proposal is None else f"{board} {self._written(proposal)}?"
        else:
            text = "\n".join(filter(None, (self.rules, self._role(), board, *self._terms())))
        agent = self.agents[self.acting]
        return {agent: Observation([Message(text)], info={"new_conversation": True})}

    def _role(self) -> str:
        if len(self.agents) == 1:
            return ""
        if self._proposal is None:
            return "You are the planner: you propose moves, and the executor decides."
        return "You are the executor: you check the planner's proposal and decide."

    def _terms(self) -> list[str]:
        """Last outcome, proposal, budget and format."""
        lines = ["Nothing could be read of the last answer."] if self._unread else []
        if self._failed:
            when = "so far" if self.lasting else "in the last answer"
            lines.append(f"Not possible {when}: {self._written(self._failed)}")
        if self._proposal is not None:
            proposal = self.divider.join(self._proposal)
            lines.append(f"Proposal: {proposal}" if proposal else "The proposal could not be read.")
        left = self.rounds - self._round
        lines.append(f"At most {self.moves} in an answer; answers left: {left}.")
        lines.append(f"End with your answer in this form: <answer>{self.example}</answer>")
        return lines

    def _chosen(self, level: int, settings: Mapping[str, float]) -> dict[str, float]:
        """The settings of the level, with those of the user."""
        if not isinstance(level, int) or not 1 <= level <= len(self.levels):
            raise ConfigError(
                f"level must be a whole number from 1 to {len(self.levels)}, not {level!r}"
            )
        for name, value in settings.items():
            if name not in self.bounds:
                raise ConfigError(unknown(str(name), list(self.bounds), "settings"))
            least, most = self.bounds[name]
            kind = int if isinstance(least, int) else float
            right = is_number(value) and (kind is float or isinstance(value, int))
            if not right or not least <= value <= most:
                word = "a whole number" if kind is int else "a number"
                raise ConfigError(
                    f"settings.{name} must be {word} from {least:g} to {most:g}, not {value!r}"
                )
        return {**self.levels[level - 1], **settings}
