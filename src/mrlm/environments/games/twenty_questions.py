"""Twenty questions: one player knows a thing, the other finds it by questions about attributes."""

import random
from collections.abc import Sequence
from typing import Literal

from mrlm.core.board import Html, stacked, table
from mrlm.core.content import content
from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Task
from mrlm.environments.shared.games import Opponent, Style, Teaches, TurnGame
from mrlm.environments.shared.rows import is_held_out, is_number, penalty, whole_number
from mrlm.environments.shared.short_answers import only_word

_TABLE = content(__file__)
ATTRIBUTES: dict[str, str] = _TABLE["attributes"]
"""Attribute -> its description."""
TRUE = {thing: frozenset(text.split()) for thing, text in _TABLE["things"].items()}
"""Thing -> the attributes it has."""
THINGS = tuple(TRUE)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CODES: dict[str, str] = dict(zip(LETTERS, ATTRIBUTES, strict=True)) | {
    f"{number:02d}": thing for number, thing in enumerate(THINGS)
}
"""Code in the short style -> attribute or thing."""
SHORT = {word: code for code, word in CODES.items()}
ASKER, ANSWERER = 0, 1


class TwentyQuestionsEnvironment(TurnGame):
    """A game in which the asker has to find one of 86 things, each described by 26 binary
    attributes. The asker names an attribute and learns whether the thing has it, or names a thing
    as its guess. A right guess ends the game, as does the last of `max_questions` messages:
    questions, guesses and malformed messages all count.

    A message is valid if it names exactly one attribute, or exactly one thing, as a whole word; any
    other is malformed.

    The asker's reward of a right guess in its k-th message is `1 - speed (k - 1) / max_questions`;
    a wrong guess costs `wrong`, a malformed message `illegal`, and a thing that is not found gives
    0. Components: `found`, `asked` (number of messages), `wrong`, `illegal`.

    The answers come from the table, or from a second agent (`opponent: agent`), which sees the
    thing and answers yes or no. Its answers are checked against the table: a false answer costs it
    `lie`, one that is neither yes nor no `illegal`, and the asker always receives the truth. With
    `answerer_reward: team` it also receives the asker's reward of a right guess, with `truth` the
    fraction of its true answers.

    The `expert` names the attribute that splits the remaining things most evenly, and guesses when
    one is left; it needs six to ten messages for any of the 86. Its answers are true.

    A tenth of the things never occurs in training; with `num_things`, a tenth of the possible
    selections.

    Args:
        agents: names of the agents; `player` against a script, else `asker` and `answerer`.
        max_questions: maximum number of the asker's messages in a game, at least 2.
        num_things: number of candidate things, which the asker sees; by default all.
        speed: fraction of the reward that depends on the number of messages, from 0 to 1,
            exclusive.
        wrong, illegal, lie: penalties.
        answerer_reward: `team` or `truth`.
        opponent, seat, teaches, style: as for every two-player game, except that without `opponent`
            the answers come from the table. A `random` answerer is not allowed. In the `short`
            style an attribute is a letter and a thing two digits, in the order of the table, and a
            prompt of the asker is the last answer and the number of messages left: `y 12?`.
        seed: another seed gives other things for the same task seed.
    """

    reward_range: tuple[float, float] | None = (-2.0, 1.0)
    roles: tuple[str, ...] = ("asker", "answerer")

    def __init__(
        self,
        agents: str | Sequence[str] | None = None,
        max_questions: int = 20,
        num_things: int | None = None,
        speed: float = 0.5,
        wrong: float = 0.1,
        illegal: float = 0.1,
        lie: float = 0.5,
        answerer_reward: Literal["team", "truth"] = "team",
        opponent: Opponent = "expert",
        seat: str | None = None,
        teaches: Teaches = "best",
        style: Style = "full",
        seed: int = 0,
    ) -> None:
        default = "either" if opponent == "agent" else "asker"
        super().__init__(agents, opponent, seat or default, teaches, style)
        whole_number(2, max_questions=max_questions)
        if opponent == "random" and self.seat != "answerer":
            raise ConfigError(
                "opponent='random' requires seat='answerer', as the answers must be true"
            )
        if num_things is not None:
            whole_number(2, len(THINGS), num_things=num_things)
        if not is_number(speed) or not 0 <= speed < 1:
            raise ConfigError(f"speed must be a number from 0 to 1, exclusive, not {speed!r}")
        self.max_questions = max_questions
        self.num_things = num_things
        self.speed = speed
        self.wrong: float = penalty("wrong", wrong)
        self.illegal: float = penalty("illegal", illegal)
        self.lie: float = penalty("lie", lie)
        self.answerer_reward: Literal["team", "truth"] = answerer_reward
        self.seed = seed
        self.max_turns: int | None = 2 * max_questions
        self._thing, self._offered = "", THINGS
        self._left: tuple[str, ...] = THINGS
        self._said, self._answers, self._true = 0, 0, 0
        self._pending: str | None = None
        self._log: tuple[tuple[str, str], ...] = ()
        """The asker's messages and the answers to them."""

    def task(self, seed: int, split: Split = "train") -> Task:
        name = f"twenty_questions-{self.num_things or 'all'}-{self.seed}-{split}-{seed}"
        rng = random.Random(name)
        while True:
            offered = THINGS
            if self.num_things is not None:
                offered = tuple(sorted(rng.sample(THINGS, self.num_things)))
            thing = rng.choice(offered)
            choice = thing if self.num_things is None else " ".join(offered)
            if is_held_out(f"twenty_questions {choice}") == (split == "eval"):
                break
        prompt = [Message(self._opening(offered))]
        return Task(name, prompt, thing, seed, {"things": list(offered)})

    def begin(self, task: Task) -> None:
        offered = task.info.get("things") or THINGS
        if task.answer not in offered or not set(offered) <= set(THINGS):
            raise ConfigError(
                f"twenty_questions: task {task.id!r} needs one of the {len(THINGS)} things of the "
                "table as its answer, and such things in info['things'] (all, if not set)"
            )
        self._thing, self._offered = task.answer, tuple(offered)
        self._left = self._offered
        self._said, self._answers, self._true, self._pending = 0, 0, 0, None
        self._log = ()
        opening = self._opening(self._offered)
        self.tell(ASKER, opening, opening)

    def _opening(self, offered: Sequence[str]) -> str:
        """The first prompt of the asker."""
        if self.style == "short":
            few = self.num_things is not None
            return " ".join(SHORT[thing] for thing in offered) if few else "*"
        return (
            "Find the thing I think of. Name one attribute, and I say whether it is true, or name "
            f"one thing as your guess. Attributes: {', '.join(ATTRIBUTES)}. Things: "
            f"{', '.join(offered)}."
        )

    def question(self, role: int) -> str:
        if role == ANSWERER:
            attribute = self._pending or ""
            if self.style == "short":
                return f"{SHORT[self._thing]} {SHORT[attribute]}?"
            return (
                f"The thing is: {self._thing}. True or not: it {ATTRIBUTES[attribute]}? Yes or no?"
            )
        left = self.max_questions - self._said
        return f"{left}?" if self.style == "short" else f"You may say {left} more. What is it?"

    def play(self, role: int, text: str) -> None:
        if role == ANSWERER:
            self._answer(text)
            return
        self._said += 1
        self.pay(ASKER, 0.0, asked=1.0)
        choice = self.named(text)
        if choice == self._thing:
            self._log = (*self._log, (self._thing, "found"))
            self._end(found=True)
            return
        if choice in ATTRIBUTES:
            self._pending, self.mover = choice, ANSWERER
        elif choice is None:
            self._log = (*self._log, ("malformed", ""))
            self.pay(ASKER, -self.illegal, illegal=1.0)
            self.tell(ASKER, "Name exactly one attribute or one thing.", "!")
        else:
            self._log = (*self._log, (choice, "wrong guess"))
            self.pay(ASKER, -self.wrong, wrong=1.0)
            self._left = tuple(thing for thing in self._left if thing != choice)
            self.tell(ASKER, f"It is not: {choice}.", "x")
        if self._said == self.max_questions:
            self._end(found=False)

    def named(self, text: str) -> str | None:
        """The attribute or the thing that a message of the asker names."""
        if self.style == "short":
            return CODES.get(text.strip())
        return only_word(text.lower(), [*ATTRIBUTES, *THINGS])

    def _answer(self, text: str) -> None:
        attribute = self._pending or ""
        truth = attribute in TRUE[self._thing]
        yes, no = ("y", "n") if self.style == "short" else ("yes", "no")
        reply = only_word(text.lower(), (yes, no))
        self._answers += 1
        if reply is None:
            self.pay(ANSWERER, -self.illegal, illegal=1.0)
        elif (reply == yes) != truth:
            self.pay(ANSWERER, -self.lie, lie=1.0)
        else:
            self._true += 1
        word = yes if truth else no
        self._log = (*self._log, (attribute, "yes" if truth else "no"))
        self.tell(ASKER, f"{attribute}: {word}.", word)
        self._left = tuple(thing for thing in self._left if (attribute in TRUE[thing]) == truth)
        self.mover = ASKER

    def _end(self, found: bool) -> None:
        """End the game with its rewards."""
        earned = 1 - self.speed * (self._said - 1) / self.max_questions if found else 0.0
        self.pay(ASKER, earned, found=float(found))
        share = self._true / self._answers if self._answers else 0.0
        self.pay(ANSWERER, earned if self.answerer_reward == "team" else share, truth=share)
        self.mover = None

    def state(self) -> str:
        pending = "" if self.mover != ANSWERER else f", asked: {self._pending}"
        left = f"{len(self._left)} possible"
        return f"{self._thing}, {self._said} of {self.max_questions} said, {left}{pending}"

    def render(self, agent: str | None = None) -> Html:
        """The questions with their answers; the asker does not see the thing."""
        kinds = {"yes": "good", "no": "bad", "found": "win", "wrong guess": "lose"}
        rows = [
            (number, question, (answer, kinds.get(answer, "dim")))
            for number, (question, answer) in enumerate(self._log, 1)
        ]
        if self._pending is not None and self.mover == ANSWERER:
            rows.append((len(rows) + 1, self._pending, ("asked", "move")))
        hidden = agent is not None and self._who[ASKER] == agent
        thing = "" if hidden else f"the thing: {self._thing}; {len(self._left)} possible"
        left = f"message {self._said} of {self.max_questions}"
        return stacked(thing, left, table(rows, ("", "question", "answer")) if rows else "")

    def best(self, role: int) -> str:
        if role == ANSWERER:
            return self._yes((self._pending or "") in TRUE[self._thing])
        last = self._said + 1 == self.max_questions
        if len(self._left) == 1 or last:
            return self._written(self.drawn().choice(self._left))
        having = {name: sum(name in TRUE[thing] for thing in self._left) for name in ATTRIBUTES}
        half = len(self._left) / 2
        return self._written(min(having, key=lambda name: abs(having[name] - half)))

    def anything(self, role: int) -> str:
        rng = self.drawn()
        if role == ANSWERER:
            return self._yes(rng.random() < 0.5)
        return self._written(rng.choice([*ATTRIBUTES, *self._offered]))

    def _yes(self, true: bool) -> str:
        word = "yes" if true else "no"
        return word[0] if self.style == "short" else word

    def _written(self, word: str) -> str:
        return SHORT[word] if self.style == "short" else word


PLUGIN = TwentyQuestionsEnvironment
