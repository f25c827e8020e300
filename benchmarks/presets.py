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

After this page you can train with the settings of a paper, and you know where a run still differs
from it. `preset: NAME` gives the settings of an algorithm the values of a paper; a setting that you
write yourself takes precedence. If `training.algorithm` is not set and the preset has the name of
an algorithm, it also chooses that algorithm.

```yaml
preset: dapo                     # with training.algorithm: grpo, which is the default
environments: [{env_type: math}]
training: {batch_size: 16}       # the preset's 16 mini-batches need a multiple of 16 tasks
grpo: {group_size: 8}            # 16 in the paper
```

```python
from mrlm import GRPOConfig, GRPOTrainer, default_model


def brief(completions):
    return [-len(text) for text in completions]


trainer = GRPOTrainer(
    model=default_model(),  # embedded, with random weights; or a hub id, or a folder
    reward_func=brief,
    train_dataset=[{"prompt": f"Describe {n}."} for n in range(64)],
    preset="dr_grpo",
)
args = GRPOConfig(preset="gspo", learning_rate=1e-6)  # for `GRPOTrainer(..., args=args)`
```

In a loop of your own, write `GRPO(preset="cispo")`. `mrlm train --config experiment.yaml
--dry-run` prints the values that result, and `config.yaml` in the folder of a run has every one of
them.

`loss_type` sets less than a preset does: only the loss and how it is averaged. As values of
`loss_type`, `dapo` and `bnpo` are other names for `ppo`, the clipped token ratio, averaged over
all tokens of the optimiser batch. (TRL's `bnpo` divides by the tokens of a micro-batch instead;
here no result depends on how a batch is split.) `grpo` averages over sequences, `dr_grpo` divides
by a constant length, and `gspo` also sets its clip ranges (3e-4 and 4e-4, unless `clip_range` is
set).

A preset does not set the size of a run (tasks, lengths) or how completions are sampled; the lines
below a table name the settings for the paper's. The column "source" says where in the paper a
value is: "authors' code" marks a value that the paper does not give and that comes from its public
code, "definition" one that is part of the method itself. Every algorithm has a preset. Where a
value of a paper could not be verified, the preset leaves the default of the library, and the lines
below the table state it; settings that are not in a table have their defaults too. `vdn`, `qmix`
and `sac` have values from papers about games, because no paper trains a language model with them.
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
    table = ["| setting | value | source |", "| --- | --- | --- |", *lines]
    departs = [f"- {sentence}" for sentence in preset.departs]
    parts = [f"## {name}", f"{preset.paper}; `training.algorithm: {algorithm}`.", "\n".join(table)]
    if departs:
        parts.append("What still differs:\n\n" + "\n".join(departs))
    return "\n\n".join(parts)


def page() -> str:
    """The whole page."""
    found = [
        (algorithm, name, preset)
        for algorithm in registry.names("algorithms")
        for name, preset in registry.load("algorithms", algorithm).presets.items()
    ]
    rows = [f"| [`{name}`](#{name}) | `{kind}` | {each.paper} |" for kind, name, each in found]
    table = ["| preset | `training.algorithm` | paper |", "| --- | --- | --- |", *rows]
    texts = [OPENING.strip(), "\n".join(table), *(section(*each) for each in found)]
    return "\n\n".join(texts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
