"""Gymnasium spaces as text: lists of actions, parsing of answers, and rendering of observations.
Spaces are recognised by their class names, without importing the library."""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mrlm.core.errors import ConfigError
from mrlm.environments.shared.short_answers import only_word

MOST_LISTED = 64
"""Maximum number of actions listed in a prompt; for more only the range is given."""
_ANCHORED = re.compile(r"\b(?:action|move)\s{0,3}:\s{0,3}([^\n]{1,2000})", re.IGNORECASE)
_NUMBERS = re.compile(r"-?\d{1,9}")


class Actions:
    """The actions of a space as words.

    An answer names an action if it is its word or number, or contains exactly one of them as a
    whole word; if the answer has `Action: ...`, only the text after the last one counts. For a
    space of several numbers the answer contains as many; for a text space it is the text.

    Args:
        space: `Discrete`, `MultiDiscrete`, `MultiBinary` or `Text`.
        names: a word for every action of a `Discrete` space; by default their numbers.
        where: name of the environment in errors.

    Raises:
        ConfigError: another kind of space, or names that do not match it.
    """

    def __init__(self, space: Any, names: Sequence[str] | None, where: str) -> None:
        self.space: Any = space
        self.kind: str = type(space).__name__
        if self.kind not in ("Discrete", "MultiDiscrete", "MultiBinary", "Text"):
            raise ConfigError(
                f"{where}: its action space {space} is not supported; use Discrete, MultiDiscrete, "
                "MultiBinary or Text"
            )
        self.words: tuple[str, ...] = ()
        if self.kind == "Discrete":
            first, count = int(space.start), int(space.n)
            self.numbers: tuple[str, ...] = tuple(map(str, range(first, first + count)))
            self.words = self.numbers if names is None else tuple(names)
            plain = all(isinstance(word, str) and re.fullmatch(r"\w+", word) for word in self.words)
            different = len(self.words) == len(set(self.words)) == count
            if not different or not (plain or names is None):
                raise ConfigError(
                    f"{where}: actions must be {count} different words of letters and digits, "
                    f"not {names!r}"
                )
        elif names is not None:
            raise ConfigError(f"{where}: actions requires a Discrete space, not {space}; remove it")

    def named(self, text: str, legal: Sequence[int] | None = None) -> Any:
        """The action that an answer names; `None` if it names none, several, or an illegal one."""
        matches = _ANCHORED.findall(text)
        stated = matches[-1].strip() if matches else text.strip()
        if self.kind == "Text":
            return stated if self.space.contains(stated) else None
        if self.kind == "Discrete":
            word = only_word(stated, self.words)
            offset = None if word is None else self.words.index(word)
            if offset is None and self.words != self.numbers:
                number = only_word(stated, self.numbers)
                offset = None if number is None else self.numbers.index(number)
            if offset is None or (legal is not None and offset not in legal):
                return None
            return int(self.space.start) + offset
        numbers = [int(number) for number in _NUMBERS.findall(stated)]
        shape = tuple(self.space.shape)
        if len(numbers) != int(np.prod(shape)):
            return None
        action = np.array(numbers, dtype=np.int64).reshape(shape)
        if self.kind == "MultiBinary" and ((action < 0) | (action > 1)).any():
            return None
        action = action.astype(self.space.dtype)
        return action if self.space.contains(action) else None

    def drawn(self, draws: random.Random, legal: Sequence[int] | None = None) -> Any:
        """A random action; a legal one, if the legal actions are known."""
        if self.kind == "Discrete":
            return int(self.space.start) + draws.choice(legal or range(len(self.words)))
        self.space.seed(draws.getrandbits(31))
        return self.space.sample()

    def word(self, action: Any) -> str:
        """The word of an action."""
        if self.kind == "Discrete":
            return self.words[int(action) - int(self.space.start)]
        if self.kind == "Text":
            return str(action)
        return " ".join(map(str, np.asarray(action).ravel().tolist()))

    def listed(self, legal: Sequence[int] | None = None) -> str:
        """Description of the possible answers."""
        if self.kind == "Text":
            return f"a text of {self.space.min_length} to {self.space.max_length} characters"
        if self.kind != "Discrete":
            count = int(np.prod(self.space.shape))
            if self.kind == "MultiBinary":
                return f"{count} numbers, 0 or 1"
            start, nvec = np.asarray(getattr(self.space, "start", 0)), self.space.nvec
            least = f"at least {start.tolist()} and " if start.any() else ""
            return f"{count} numbers, {least}below {(start + nvec).tolist()}"
        places = list(range(len(self.words)) if legal is None else legal)
        if len(places) > MOST_LISTED and self.words == self.numbers and legal is None:
            return f"a number from {self.words[0]} to {self.words[-1]}"
        return ", ".join(self.words[index] for index in places)


def legal_in(info: Any, observation: Any) -> list[int] | None:
    """Indices of the legal actions by the environment's `action_mask`; `None` without one."""
    for source in (info, observation):
        if isinstance(source, Mapping) and source.get("action_mask") is not None:
            mask = np.asarray(source["action_mask"]).ravel()
            return [int(index) for index in np.flatnonzero(mask)]
    return None


def shown(observation: Any) -> str:
    """An observation as text: boards row by row, everything else in a line."""
    if isinstance(observation, str):
        return observation
    if isinstance(observation, Mapping):
        fields = {name: value for name, value in observation.items() if name != "action_mask"}
        if len(fields) == 1:
            return shown(next(iter(fields.values())))
        return "\n".join(f"{name}: {shown(value)}" for name, value in fields.items())
    if isinstance(observation, tuple | list):
        return ", ".join(shown(part) for part in observation)
    array = np.asarray(observation)
    if array.dtype.kind == "b":
        array = array.astype(np.int8)
    if array.ndim == 0:
        return _number(array.item())
    if array.ndim == 2:
        return "\n".join(" ".join(_number(part) for part in row) for row in array.tolist())
    if array.ndim == 3 and array.shape[-1] == 2 and set(np.unique(array).tolist()) <= {0, 1}:
        signs = np.where(array[..., 0] == 1, "X", np.where(array[..., 1] == 1, "O", "."))
        return "\n".join(" ".join(row) for row in signs.tolist())
    return " ".join(_number(part) for part in array.ravel().tolist())


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
