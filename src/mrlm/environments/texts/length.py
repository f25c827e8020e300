"""Length: two agents act at once; both are rewarded if one writes two to three times as much."""

import hashlib
import random
from collections.abc import Sequence

from mrlm.core.board import Html, stacked, table
from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError
from mrlm.core.thoughts import stated_by
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.environments.shared.rows import RowTasks, agent_names

WORDS = ("red", "blue", "sun", "sky", "sea", "oak", "fox", "ice")
BEST = (2.0, 3.0)
MIDDLE = 2.5


class LengthEnvironment(RowTasks, Environment):
    """A cooperative environment in which two agents write about one word, the first briefly and the
    second at length. With r the ratio of the second's number of words to the first's, the reward of
    both is the smaller of their fractions of lexicon words, times 1 for 2 <= r <= 3, else
    max(0, 1 - |r - 2.5| / 2.5). An empty message of either gives 0.

    Args:
        agents: names of the two agents, the short one first.
        words: the lexicon; a quarter of it (at least one word) is held out as subjects.
        seed: another seed gives another word for the same task seed.

    Raises:
        ConfigError: not two names, or fewer than two different words.
    """

    reward_range: tuple[float, float] | None = (0.0, 1.0)
    max_turns: int | None = 1

    def __init__(
        self, agents: Sequence[str] = ("short", "long"), words: Sequence[str] = WORDS, seed: int = 0
    ) -> None:
        self.agents: tuple[str, ...] = agent_names(agents, 2)
        plain = not isinstance(words, str) and all(
            isinstance(word, str) and word and not any(map(str.isspace, word)) for word in words
        )
        if not plain or len(set(words)) != len(words) or len(words) < 2:
            raise ConfigError(
                f"words must be at least two different words without spaces, not {words!r}"
            )
        ranked = sorted(words, key=lambda word: hashlib.blake2b(word.encode()).digest())
        held = max(1, len(ranked) // 4)
        self.words: tuple[str, ...] = tuple(words)
        self._subjects = {"eval": ranked[:held], "train": ranked[held:]}
        self.seed = seed
        self._task = Task("none", info={"word": self.words[0]})
        self._counts: tuple[tuple[int, int], ...] = ()
        """Words of each agent, and those of them that are real."""

    def task(self, seed: int, split: Split = "train") -> Task:
        word = random.Random(f"length/{self.seed}/{split}/{seed}").choice(self._subjects[split])
        prompt = [Message(f"short {word}:")]
        return Task(f"length-{self.seed}-{split}-{seed}", prompt, seed=seed, info={"word": word})

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._task, self._counts = task or self.task(seed or 0), ()
        if "word" not in self._task.info:
            raise ConfigError(f"length: task {self._task.id!r} has no 'word' in its info")
        word = self._task.info["word"]
        short, long = (Observation([Message(f"{how} {word}:")]) for how in ("short", "long"))
        return StepResult(dict(zip(self.agents, (short, long), strict=True)))

    def step(self, actions: dict[str, Message]) -> StepResult:
        texts = [stated_by(actions, agent).split() for agent in self.agents]
        self._counts = tuple((len(text), sum(w in self.words for w in text)) for text in texts)
        real = min(known / max(1, count) for count, known in self._counts)
        (short, _), (long, _) = self._counts
        ratio = long / short if short else 0.0
        fit = 1.0 if BEST[0] <= ratio <= BEST[1] else max(0.0, 1.0 - abs(ratio - MIDDLE) / MIDDLE)
        fit = fit if short and long else 0.0
        components = {"real_words": real, "length_fit": fit}
        rewards = {agent: Reward(real * fit, dict(components)) for agent in self.agents}
        return StepResult(rewards=rewards, done=True)

    def state(self) -> str:
        return f"short and long about {self._task.info['word']}"

    def render(self, agent: str | None = None) -> Html | None:
        """The numbers of words and their ratio, when both have written."""
        if agent is not None or not self._counts:
            return None
        rows = [(name, *counts) for name, counts in zip(self.agents, self._counts, strict=True)]
        (short, _), (long, _) = self._counts
        ratio = f"{long / short:.3g}" if short else "none"
        ratio_text = f"ratio {ratio}, from {BEST[0]:g} to {BEST[1]:g} is best"
        return stacked(table(rows, ("agent", "words", "real words")), ratio_text)

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        rng = random.Random(f"length/{self._task.id}")
        count = rng.randint(1, 2)
        longer = rng.randint(2 * count, 3 * count)
        words = [self._task.info["word"], *rng.choices(self.words, k=longer - 1)]
        return " ".join(words[:count] if agent == self.agents[0] else words)


PLUGIN = LengthEnvironment
