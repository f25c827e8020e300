"""Writes docs/coming_from.md: where every setting of TRL and CoMLRL is here, or why it is not."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

from mrlm.config.aliases import NUM_AGENTS, PER_DEVICE, WORDS
from mrlm.config.flat_words import algorithm_fields
from mrlm.config.other_libraries import refused_classes, refused_settings
from mrlm.core import registry
from mrlm.trainer import Trainer

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "coming_from.md"
FIELDS = ROOT / "tests" / "fixtures" / "other_libraries.json"
ALGORITHMS = {
    "trl.DPO": "dpo",
    "trl.GRPO": "grpo",
    "trl.Model": "grpo",
    "trl.RLOO": "rloo",
    "trl.Reward": "reward_model",
    "trl.SFT": "sft",
    "comlrl.IAC": "ippo",
    "comlrl.MAAC": "mappo",
    "comlrl.MADPO": "madpo",
    "comlrl.MAGRPO": "magrpo",
    "comlrl.MAREINFORCE": "mareinforce",
    "comlrl.MARLOO": "marloo",
    "comlrl.MAReMax": "maremax",
}
"""Class of another library (without `Config` or `Trainer`) -> the algorithm here."""
PLAYED = sorted({*ALGORITHMS.values()})
NOTES = {
    ("trl", "num_iterations"): "`update_epochs`. **The same word is `training.num_iterations` "
    "here**: iterations of the whole run",
    ("comlrl", "rollout_buffer_size"): "`training.batch_size`, which counts tasks; CoMLRL counts "
    "turns",
    ("comlrl", "train_batch_size"): "`training.batch_size`; for smaller steps set "
    "`num_minibatches`",
}
"""What the table of words cannot say."""
INTRODUCTION = """# Coming from TRL, CoMLRL or verl

Import the trainer from `mrlm` instead, keep the words you know, and read what is refused: the
error says why and what to set. This page lists every setting of {trl} and {comlrl} and every
argument of their trainers. It is made by `python scripts/coming_from.py`; a test compares it with
the installed libraries.

```python
from mrlm import IACTrainer, MAACTrainer, MAGRPOTrainer, MAGRPOConfig  # instead of comlrl.trainers
from mrlm import DPOTrainer, GRPOTrainer, GRPOConfig, RLOOTrainer, SFTTrainer  # instead of trl
```

A setting may be a keyword of the trainer, a field of its config class, or a key at the top of a
YAML file, in `training:` or in the algorithm's section. A value that is the behaviour here anyway
(`push_to_hub=False`) is accepted; any other value of a refused setting is an error.
"""
VERL = """## verl

verl's sections are refused with this table in one sentence:

| verl | here |
|---|---|
| `actor_rollout_ref.model.path` | `model.model_name_or_path` |
| `actor_rollout_ref.actor.optim.lr`, `critic.optim.lr` | `training.learning_rate`, `training.critic_learning_rate` |
| `actor_rollout_ref.actor.ppo_mini_batch_size`, `ppo_epochs` | `num_minibatches` (how many, not how large), `update_epochs` |
| `actor_rollout_ref.actor.clip_ratio`, `clip_ratio_high`, `entropy_coeff` | `clip_range`, `clip_range_high`, `entropy_coef` |
| `actor_rollout_ref.actor.kl_loss_coef` | `kl_coef` |
| `actor_rollout_ref.rollout.n`, `temperature`, `top_p` | `group_size`, `generation.temperature`, `generation.top_p` |
| `actor_rollout_ref.rollout.name` (vllm, sglang) | `engine.name`, a server at `engine.base_url` |
| `data.train_files`, `train_batch_size`, `max_prompt_length`, `max_response_length` | `data.dataset`, `training.batch_size`, `generation.max_prompt_tokens`, `generation.max_new_tokens` |
| `algorithm.adv_estimator` (gae, grpo, rloo, remax, reinforce_plus_plus) | `training.algorithm` (ppo, grpo, rloo, remax, reinforce_pp) |
| `algorithm.gamma`, `algorithm.lam` | `gamma`, `gae_lambda` of the algorithm |
| `trainer.total_epochs`, `save_freq`, `test_freq` | `training.num_epochs`, `training.save_steps`, `evaluation.every` |
| `custom_reward_function.path` | `environments: [{env_type: reward, reward_func: "module:function"}]` |
"""  # noqa: E501


def meaning(name: str, algorithm: str) -> tuple[bool, str]:
    """Whether a setting or argument of another library has an equivalent, and which, or why not.

    Raises:
        KeyError: nothing is known of it.
    """
    fields = algorithm_fields(registry.load("algorithms", algorithm))
    if name in fields:
        return True, f"`{name}`"
    if name in inspect.signature(Trainer.__init__).parameters:
        return True, f"`{name}=`"
    if name in WORDS:
        word = WORDS[name]
        path = {PER_DEVICE: "training.batch_size", NUM_AGENTS: "num_agents="}.get(
            word.path, word.path.removeprefix("algorithm.")
        )
        if word.path.startswith("algorithm.") and path not in fields:
            lacking = f"`{algorithm}` has no `{path}`"
            return False, lacking if word.absent is None else word.absent.reason
        return True, f"`{path}`"
    if any(name in algorithm_fields(registry.load("algorithms", each)) for each in PLAYED):
        return False, f"`{algorithm}` has no `{name}`"
    return False, refused_settings()[name].reason


def page() -> str:
    """The text of the page."""
    known = json.loads(FIELDS.read_text(encoding="utf-8"))
    titles = {
        name: f"{title} {known['versions'][name]}"
        for name, title in (("trl", "TRL"), ("comlrl", "CoMLRL"))
    }
    parts = [INTRODUCTION.format(**titles)]
    for library, title in titles.items():
        taken: dict[str, dict[str, None]] = {}
        refused: dict[str, dict[str, None]] = {}
        offered: list[str] = []
        for cls, names in known["classes"].items():
            stem = cls.removesuffix("Config").removesuffix("Trainer")
            if not cls.startswith(f"{library}.") or stem not in ALGORITHMS:
                continue
            if cls.endswith("Trainer"):
                offered.append(
                    f"| `{cls.partition('.')[2]}` | `training.algorithm: {ALGORITHMS[stem]}` |"
                )
            every = (
                [*known["TrainingArguments"], *names[1:]]
                if names[0] == "TrainingArguments"
                else names
            )
            for name in every:
                here, text = meaning(name, ALGORITHMS[stem])
                text = NOTES.get((library, name), text)
                (taken if here else refused).setdefault(text, {})[name] = None
        for stem, reason in refused_classes().items():
            if any(each.startswith(f"{library}.{stem}") for each in known["classes"]):
                offered.append(f"| `{stem}` | {reason} |")
        parts += [
            f"## {title}\n\n| there | here |\n|---|---|\n" + "\n".join(offered),
            "\n| setting there | here |\n|---|---|\n" + _rows(taken, same=True),
            "\n| refused | why, and what to do instead |\n|---|---|\n" + _rows(refused, same=False),
            "",
        ]
    return "\n".join([*parts, VERL])


def _rows(table: dict[str, dict[str, None]], same: bool) -> str:
    rows = [(", ".join(f"`{name}`" for name in names), text) for text, names in table.items()]
    equal = [
        left for left, text in rows if same and text.rstrip("=`").strip("`") == left.strip("`")
    ]
    lines = [f"| {', '.join(equal)} | the same |"] if equal else []
    lines += [f"| {left} | {text} |" for left, text in rows if left not in equal]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
