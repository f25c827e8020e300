"""The page of the presets, `docs/presets.md`, from the tables of the algorithms:

python -m benchmarks.presets
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mrlm.config.paper_presets import PaperPreset
from mrlm.core import registry

PAGE = Path(__file__).parents[1] / "docs" / "presets.md"
OPENING = """# Presets: the numbers of papers

`preset: NAME` sets an algorithm as a paper has it; whatever is written beside it wins. A name that
is an algorithm's own chooses the algorithm too, where `training.algorithm` is not set.

```yaml
preset: dapo                     # with training.algorithm: grpo, which is the default
training: {batch_size: 16}       # 16 updates per rollout need a multiple of 16 tasks
grpo: {group_size: 8}            # 16 in the paper
```

```python
from mrlm import GRPOConfig, GRPOTrainer

trainer = GRPOTrainer(model=model, reward_func=reward, train_dataset=rows, preset="dr_grpo")
args = GRPOConfig(preset="gspo", learning_rate=1e-6)
```

In a loop of your own it is `GRPO(preset="cispo")`. The resolved config of a run holds every
number.

`loss_type` is less than a preset: a loss and its average. `dapo` and `bnpo` are other names of
`ppo`, the clipped token ratio over all tokens of the optimiser batch: TRL's `bnpo` divides by the
tokens of a micro-batch instead, and no result here depends on how a batch is cut. `grpo` averages
over sequences, `dr_grpo` divides by a constant length, `gspo` brings its clip ranges along (3e-4
and 4e-4, unless `clip_range` is set).

How large a run is (tasks, lengths) is no part of a preset. "Authors' code" is a number that the
paper does not name and its public code has; "definition" is what the method is. Every algorithm has
a preset. Where a number of a paper is not verified, the setting is left as it is without a preset,
and the lines below the table say so; what is not in a table is the library's. `vdn`, `qmix` and
`sac` have the numbers of games, as no paper trains a language model with them.
"""


def shown(value: Any) -> str:
    """A value as YAML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def section(algorithm: str, name: str, preset: PaperPreset) -> str:
    """The part of the page about one preset."""
    rows = [(setting, *both) for setting, both in preset.settings.items()]
    if preset.learning_rate is not None:
        rows.append(("training.learning_rate", *preset.learning_rate))
    lines = [f"| `{setting}` | {shown(value)} | {where} |" for setting, value, where in rows]
    table = ["| setting | value | where |", "| --- | --- | --- |", *lines]
    departs = [f"- {sentence}" for sentence in preset.departs]
    parts = [f"## {name}", f"{preset.paper}; `training.algorithm: {algorithm}`.", "\n".join(table)]
    if departs:
        parts.append("What still differs:\n\n" + "\n".join(departs))
    return "\n\n".join(parts)


def page() -> str:
    """The whole page."""
    found = [
        section(algorithm, name, preset)
        for algorithm in registry.names("algorithms")
        for name, preset in registry.load("algorithms", algorithm).presets.items()
    ]
    return "\n\n".join([OPENING.strip(), *found]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
