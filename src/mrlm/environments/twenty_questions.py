"""Twenty questions: one player has a thing, the other finds it by asking what is true of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Task
from mrlm.environments.shared.games import Opponent, Style, Teaches, TwoSeats, one_of, penalty
from mrlm.environments.shared.rows import at_least, is_held_out
from mrlm.environments.shared.text import only_word
from mrlm.environments.shared.things import ATTRIBUTES, TRUE

THINGS = tuple(TRUE)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CODES: dict[str, str] = dict(zip(LETTERS, ATTRIBUTES, strict=True)) | {
    f"{number:02d}": thing for number, thing in enumerate(THINGS)
}
"""What is said in the short style -> attribute or thing."""
SHORT = {word: code for code, word in CODES.items()}
ASKER, ANSWERER = 0, 1


class TwentyQuestionsEnvironment(TwoSeats):
    """A thing is to be found among 86, of each of which 26 attributes are true or not. The asker
    names one attribute and is told whether the thing has it, or names one thing, which is its
    guess. A right guess ends the game, and so does the last of `max_questions`: questions, guesses
    and malformed messages all count.

    A message is read if it names exactly one attribute, or exactly one thing, as a whole word;
    whatever else is malformed.

    The asker is paid for a right guess `1 - speed (k - 1) / max_questions`, where it is the k-th
    that it says; a wrong one costs `wrong`, a malformed message `illegal`, and a thing that is not
    found pays nothing. Components: `found`, `asked` (how much was said), `wrong`, `illegal`.

    The answers come from the table, or from a second agent (`opponent: agent`), which is shown the
    thing and says yes or no. What it says is compared with the table: an untrue answer costs it
    `lie`, one that is neither yes nor no `illegal`, and the asker is told the truth in either case.
    So nothing but the truth passes between the two. With `answerer_reward: team` it is paid
    besides what the asker gets for a right guess, with `truth` the share of its answers that were
    true.

    The `expert` asks what parts the things that are left most evenly, and guesses when one is left;
    it needs six to ten messages for any of the 86. Its answers are true.

    A tenth of the things is never to be found in training; with `num_things`, a tenth of the
    choices that can be offered.

    Args:
        agents: names of the seats; `player` against a script, else `asker` and `answerer`.
        max_questions: what the asker may say in a game, at least 2.
        num_things: offer so many things, which the asker is told; all of them where not given.
        speed: how much of a reward depends on the number of questions, from 0 to 1, exclusive.
        wrong, illegal, lie: penalties.
        answerer_reward: `team` or `truth`.
        opponent, seat, teaches, style: as for every game of two seats, but for this: without
            `opponent` the answers come from the table. An answerer at `random` is refused. In the
            `short` style an attribute is a letter and a thing two digits, in the order of the
            table, and a question to the asker is the last answer and how much it may still say:
            `y 12?`.
        seed: another seed gives other things for the same task seed.

    Raises:
        ConfigError: a setting out of its range.
    """

    roles = ("asker", "answerer")

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
        at_least("max_questions", max_questions, 2, whole=True)
        one_of("answerer_reward", answerer_reward, ("team", "truth"))
        if opponent == "random" and self.seat != "answerer":
            raise ConfigError("opponent='random' with seat='answerer' only: answers must be true")
        if num_things is not None:
            at_least("num_things", num_things, 2, whole=True)
            if num_things > len(THINGS):
                raise ConfigError(f"num_things must be at most {len(THINGS)}, not {num_things}")
        if isinstance(speed, bool) or not isinstance(speed, int | float) or not 0 <= speed < 1:
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

    # -- tasks -------------------------------------------------------------------------------------

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
        self.tell(ASKER, self._opening(self._offered))

    def _opening(self, offered: Sequence[str]) -> str:
        """What the asker is told first."""
        if self.style == "short":
            few = self.num_things is not None
            return " ".join(SHORT[thing] for thing in offered) if few else "*"
        return (
            "Find the thing I think of. Name one attribute, and I say whether it is true, or name "
            f"one thing as your guess. Attributes: {', '.join(ATTRIBUTES)}. Things: "
            f"{', '.join(offered)}."
        )

    # -- what is said ------------------------------------------------------------------------------

    def question(self, role: int) -> str:
        if role == ANSWERER:
            asked = self._pending or ""
            if self.style == "short":
                return f"{SHORT[self._thing]} {SHORT[asked]}?"
            return f"The thing is: {self._thing}. True or not: it {ATTRIBUTES[asked]}? Yes or no?"
        left = self.max_questions - self._said
        return f"{left}?" if self.style == "short" else f"You may say {left} more. What is it?"

    def play(self, role: int, text: str) -> None:
        if role == ANSWERER:
            self._answer(text)
            return
        self._said += 1
        self.pay(ASKER, 0.0, asked=1.0)
        said = self.named(text)
        if said == self._thing:
            self._end(found=True)
            return
        if said in ATTRIBUTES:
            self._pending, self.mover = said, ANSWERER
        elif said is None:
            self.pay(ASKER, -self.illegal, illegal=1.0)
            full = "Name exactly one attribute or one thing."
            self.tell(ASKER, full if self.style == "full" else "!")
        else:
            self.pay(ASKER, -self.wrong, wrong=1.0)
            self._left = tuple(thing for thing in self._left if thing != said)
            self.tell(ASKER, f"It is not: {said}." if self.style == "full" else "x")
        if self._said == self.max_questions:
            self._end(found=False)

    def named(self, text: str) -> str | None:
        """The attribute or the thing that a message of the asker names."""
        if self.style == "short":
            return CODES.get(text.strip())
        return only_word(text.lower(), [*ATTRIBUTES, *THINGS])

    def _answer(self, text: str) -> None:
        asked = self._pending or ""
        truth = asked in TRUE[self._thing]
        yes, no = ("y", "n") if self.style == "short" else ("yes", "no")
        said = only_word(text.lower(), (yes, no))
        self._answers += 1
        if said is None:
            self.pay(ANSWERER, -self.illegal, illegal=1.0)
        elif (said == yes) != truth:
            self.pay(ANSWERER, -self.lie, lie=1.0)
        else:
            self._true += 1
        word = yes if truth else no
        full = f"{asked}: {'yes' if truth else 'no'}."
        self.tell(ASKER, word if self.style == "short" else full)
        self._left = tuple(thing for thing in self._left if (asked in TRUE[thing]) == truth)
        self.mover = ASKER

    def _end(self, found: bool) -> None:
        """Pay for a thing that was found, or not."""
        earned = 1 - self.speed * (self._said - 1) / self.max_questions if found else 0.0
        self.pay(ASKER, earned, found=float(found))
        share = self._true / self._answers if self._answers else 0.0
        self.pay(ANSWERER, earned if self.answerer_reward == "team" else share, truth=share)
        self.mover = None

    def state(self) -> str:
        asked = "" if self.mover != ANSWERER else f", asked: {self._pending}"
        left = f"{len(self._left)} possible"
        return f"{self._thing}, {self._said} of {self.max_questions} said, {left}{asked}"

    # -- who plays by itself -----------------------------------------------------------------------

    def best(self, role: int) -> str:
        if role == ANSWERER:
            return self._yes((self._pending or "") in TRUE[self._thing])
        last = self._said + 1 == self.max_questions
        if len(self._left) == 1 or last:
            return self._written(self.drawn().choice(self._left))
        return self._written(min(ATTRIBUTES, key=self._uneven))

    def _uneven(self, attribute: str) -> float:
        """How unevenly an attribute parts what is left."""
        return abs(sum(attribute in TRUE[thing] for thing in self._left) - len(self._left) / 2)

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
