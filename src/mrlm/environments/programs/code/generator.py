"""Unlimited generated programming problems, sampled from templates. Held-out problems differ from
all training problems, for any seed."""

import random
from collections.abc import Sequence

from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError
from mrlm.environments.programs.code.families import FAMILIES
from mrlm.environments.programs.code.problems import CodeProblem
from mrlm.environments.programs.code.templates import ProgramTemplate
from mrlm.environments.shared.generators import chosen, difficulties, unordered
from mrlm.environments.shared.rows import is_held_out, whole_number

LEVELS = (1, 3)
TRIES = 10_000
"""Number of samples after which a split is considered empty."""


class CodeProblemGenerator:
    """A generator of unlimited problems, each with tests that its reference solution passes.

    Args:
        difficulty_range: lowest and highest difficulty, between 1 and 3.
        seed: generators with different seeds give different problems for the same problem seed.
        families: any of `strings`, `lists`, `arithmetic`, `recursion`, `dictionaries`,
            `simulation`; all of them when `None`.
        templates: names of the only templates to sample from; `difficulty_range` and `families` are
            then ignored. For very small models: `larger`, `plus_number`, ...
        num_visible: tests shown in the question.
        num_hidden: further tests, which are never shown.

    Raises:
        ConfigError: an impossible range or number, or an unknown family or template.
    """

    def __init__(
        self,
        difficulty_range: Sequence[int] = (1, 3),
        seed: int = 0,
        families: str | Sequence[str] | None = None,
        templates: str | Sequence[str] | None = None,
        num_visible: int = 2,
        num_hidden: int = 4,
    ) -> None:
        self.difficulty_range: tuple[int, int] = difficulties(difficulty_range, *LEVELS)
        self.families: tuple[str, ...] = chosen(families, FAMILIES, "families")
        whole_number(0, num_visible=num_visible)
        whole_number(2, num_hidden=num_hidden)
        if num_visible > 2 or num_hidden > 8:
            raise ConfigError(
                f"num_visible={num_visible} and num_hidden={num_hidden}: a generated problem has "
                "at most 2 visible and 8 hidden tests"
            )
        self.seed = seed
        self.num_visible = num_visible
        self.num_tests: int = num_visible + num_hidden
        self._templates = _selected(self.families, self.difficulty_range, templates)

    def problem(self, seed: int, split: Split = "train") -> CodeProblem:
        """The problem of a seed. A problem of `eval` never occurs in `train`, for any seeds."""
        rng = random.Random(f"code/{self.seed}/{split}/{seed}")
        held_out = split == "eval"
        for _ in range(TRIES):
            family = rng.choice(list(self._templates))
            group = self._templates[family]
            level = rng.choice(sorted({template.level for template in group}))
            template = rng.choice([template for template in group if template.level == level])
            drawn = template.draw(
                rng, max(self.num_tests, 3), lambda text: is_held_out(unordered(text)) == held_out
            )
            if drawn is None:
                continue
            return CodeProblem(
                text=f"Write a Python function `{drawn.signature}`. {drawn.text}",
                kind="calls",
                tests=[[list(args), expected] for args, expected in drawn.calls[: self.num_tests]],
                entry=drawn.entry,
                visible=self.num_visible,
                solution=drawn.source,
                family=family,
                template=template.name,
                difficulty=template.level,
            )
        raise ConfigError(f"the templates {self.templates} give no problem of the split {split!r}")

    @property
    def templates(self) -> list[str]:
        """Names of the templates that problems are sampled from."""
        return [template.name for group in self._templates.values() for template in group]


def _selected(
    families: Sequence[str], bounds: tuple[int, int], names: str | Sequence[str] | None
) -> dict[str, list[ProgramTemplate]]:
    """The templates to sample from, by family; families without any are left out."""
    if names is not None:
        all_names = [template.name for group in FAMILIES.values() for template in group]
        chosen_names = chosen(names, all_names, "templates")
        picked = {f: [t for t in group if t.name in chosen_names] for f, group in FAMILIES.items()}
    else:
        low, high = bounds
        picked = {f: [t for t in FAMILIES[f] if low <= t.level <= high] for f in families}
    return {family: group for family, group in picked.items() if group}
