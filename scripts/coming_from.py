"""Writes docs/coming_from.md and docs/coming_from/: where every setting of TRL, CoMLRL, RLlib and
verifiers is here, or why it is not, and what their parts and keys are called here."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mrlm.config import ExperimentConfig
from mrlm.config.aliases import NUM_AGENTS, PER_DEVICE, WEIGHTS, WORDS
from mrlm.config.compatible import compatible_faces
from mrlm.config.flat_words import algorithm_fields, config_class
from mrlm.config.other_libraries import refused_classes, refused_settings
from mrlm.core import registry
from mrlm.trainer import Trainer

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [DOCS / "coming_from.md", *sorted((DOCS / "coming_from").glob("*.md"))]
NAMES = ROOT / "scripts" / "coming_from.yaml"
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
    "rllib.PPO": "ppo",
    "verifiers.RL": "grpo",
}
"""Class of another library (without `Config` or `Trainer`) -> the algorithm here."""
PLAYED = sorted({*ALGORITHMS.values()})
NOTES = {
    ("trl", "num_iterations"): "`update_epochs`. **The same word is `training.num_iterations` "
    "here**: iterations of the whole run",
    (
        "trl",
        "per_device_train_batch_size",
    ): "`training.batch_size`; **in grpo and rloo completions, "
    "as there**: `per_device x accumulation x processes` of them, divided by `num_generations`",
    ("trl", "eval_strategy"): "`no` or `steps`, with `eval_steps` (`evaluation.every`)",
    (
        "trl",
        "save_strategy",
    ): "`no` or `steps`, with `save_steps`; the end of a run is always saved",
    ("trl", "logging_strategy"): "`steps`, with `logging_steps`",
    ("trl", "disable_dropout"): "`training.dropout`, its opposite",
    ("trl", "callbacks"): "`callbacks=`, see [callbacks](callbacks.md)",
    ("rllib", "gamma"): "`gamma`, from turn to turn; `gamma_token` (1) from token to token",
    ("rllib", "kl_target"): "**the same word is a divergence from the reference here**, by which "
    "`kl_coef` is adapted; RLlib's is from the policy before the update",
    ("rllib", "model"): "`model=`, a language model; **RLlib's `model` describes a network**",
    ("rllib", "num_epochs"): "`update_epochs`. **The same word is `training.num_epochs` here**: "
    "passes over a data set",
    ("rllib", "optimizer"): "`training.optimizer`, a name; **RLlib's `optimizer` is a mapping**",
    ("rllib", "train_batch_size"): "`training.batch_size`, which counts tasks; RLlib counts "
    "steps of environments",
    ("rllib", "evaluation_duration"): "`evaluation.episodes`, a number",
    ("verifiers", "batch_size"): "`training.batch_size`, which counts tasks; verifiers counts "
    "rollouts (`rollouts_per_example` of each task)",
    ("comlrl", "rollout_buffer_size"): "`training.batch_size`, which counts tasks; CoMLRL counts "
    "nodes of trees and rollouts, and so do the classes of `mrlm.comlrl`",
    ("comlrl", "critics"): "`critics=`",
    ("comlrl", "train_batch_size"): "`training.batch_size`; for smaller steps set "
    "`num_minibatches`",
}
"""What the table of words cannot say."""
MARKED = re.compile(
    r"(<!-- (\w+) (\w+): written by `python -m scripts\.coming_from` -->\n)(.*?)(<!-- end -->)",
    re.DOTALL,
)
"""A table of a page: what is before it, the library, the kind of table, the table, its end."""


@cache
def _fields(algorithm: str) -> Collection[str]:
    """The names of the settings of an algorithm."""
    return algorithm_fields(registry.load("algorithms", algorithm)).keys()


def meaning(name: str, algorithm: str) -> tuple[bool, str]:
    """Whether a setting or argument of another library has an equivalent, and which, or why not.

    Raises:
        KeyError: nothing is known of it.
    """
    fields = _fields(algorithm)
    if name in fields:
        return True, f"`{name}`"
    if name in inspect.signature(Trainer.__init__).parameters:
        return True, f"`{name}=`"
    if name in WORDS:
        word = WORDS[name]
        path = {
            PER_DEVICE: "training.batch_size",
            NUM_AGENTS: "num_agents=",
            WEIGHTS: "reward_weights=",
        }.get(word.path, word.path.removeprefix("algorithm."))
        if word.path.startswith("algorithm.") and path not in fields:
            lacking = f"`{algorithm}` has no `{path}`"
            return False, lacking if word.absent is None else word.absent.reason
        return True, f"`{path}`"
    if any(name in _fields(each) for each in PLAYED):
        return False, f"`{algorithm}` has no `{name}`"
    if name in ExperimentConfig.model_fields:
        return True, f"the section `{name}`"
    return False, refused_settings()[name].reason


@cache
def known() -> dict[str, Any]:
    """The names of the settings of other libraries."""
    return json.loads(FIELDS.read_text(encoding="utf-8"))


@cache
def names() -> dict[str, Any]:
    """The names of the parts and keys of other libraries (`coming_from.yaml`)."""
    return yaml.safe_load(NAMES.read_text(encoding="utf-8"))


@cache
def pages() -> dict[Path, str]:
    """The pages with tables of other libraries -> their text."""
    return {
        page: MARKED.sub(
            lambda match: match[1] + TABLES[match[3]](match[2]) + "\n" + match[5],
            page.read_text(encoding="utf-8"),
        )
        for page in PAGES
    }


def _played(library: str) -> dict[str, str]:
    """The classes of a library whose settings are listed -> the algorithm here."""
    stems = {cls: cls.removesuffix("Config").removesuffix("Trainer") for cls in known()["classes"]}
    return {
        cls: ALGORITHMS[stem]
        for cls, stem in stems.items()
        if cls.startswith(f"{library}.") and stem in ALGORITHMS
    }


def _classes(library: str) -> str:
    """The table of a library's trainers."""
    rows = [
        f"| `{cls.partition('.')[2]}` | `training.algorithm: {algorithm}` |"
        for cls, algorithm in _played(library).items()
        if cls.endswith("Trainer")
    ]
    rows += [
        f"| `{stem}` | {reason} |"
        for stem, reason in refused_classes().items()
        if any(each.startswith(f"{library}.{stem}") for each in known()["classes"])
    ]
    return "| there | here |\n|---|---|\n" + "\n".join(rows)


def _settings(library: str) -> str:
    """The tables of a library's settings: those that are taken, and those that are refused."""
    version = f"Version {known()['versions'][library]}."
    taken: dict[str, dict[str, None]] = {}
    refused: dict[str, dict[str, None]] = {}
    for cls, algorithm in _played(library).items():
        listed = known()["classes"][cls]
        if listed[0] == "TrainingArguments":
            listed = [*known()["TrainingArguments"], *listed[1:]]
        for name in listed:
            here, text = meaning(name, algorithm)
            text = NOTES.get((library, name), text)
            (taken if here else refused).setdefault(text, {})[name] = None
    return "\n".join(
        [
            f"{version}\n\n| setting there | here |\n|---|---|\n" + _rows(taken, same=True),
            "\n| refused | why, and what to do instead |\n|---|---|\n" + _rows(refused, same=False),
        ]
    )


def _parts(library: str) -> str:
    """The table of a library's classes, functions and arguments."""
    rows = [f"| {_code(row['there'])} | {row['here']} |" for row in names()[library]["parts"]]
    return "| there | here |\n|---|---|\n" + "\n".join(rows)


def _keys(library: str) -> str:
    """The table of the keys of a library's files."""
    rows = []
    for row in names()[library]["keys"]:
        here = [
            f"{path}: {json.dumps(value)}" if isinstance(value, list) else path
            for path, value in row["here"].items()
        ]
        text = _code(each.removeprefix("algorithm.") for each in here)
        note = f"; {row['note']}" if "note" in row else ""
        rows.append(f"| {_code(row['there'])} | {text}{note} |")
    return f"| {library.replace('_', '-')} | here |\n|---|---|\n" + "\n".join(rows)


def _code(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def _rows(table: dict[str, dict[str, None]], same: bool) -> str:
    rows = [(", ".join(f"`{name}`" for name in names), text) for text, names in table.items()]
    equal = [
        left for left, text in rows if same and text.rstrip("=`").strip("`") == left.strip("`")
    ]
    lines = [f"| {', '.join(equal)} | the same |"] if equal else []
    lines += [f"| {left} | {text} |" for left, text in rows if left not in equal]
    return "\n".join(lines)


def _defaults(library: str) -> str:
    """The table of what is done where a setting is left out: there and with the class of that name
    in `mrlm.<library>`, and with the class of `mrlm`."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for name, face in compatible_faces(library).items():
        if face.kind != "config":
            continue
        usual = config_class(name, library)()
        native = ExperimentConfig(training={"algorithm": face.algorithm})  # pyright: ignore
        own = algorithm_fields(type(native.algorithm_settings()))
        for word in face.defaults:
            path = f"algorithm.{word}" if word in own else WORDS[word].path
            ours, shown = _native(native, path), json.dumps(getattr(usual, word))
            if word == "disable_dropout":
                ours = "true, but for `lora.dropout`"
            if ours == shown:
                continue
            rows.setdefault((word, shown, ours), []).append(name.removesuffix("Config"))
        for path, value in face.settings.items():
            ours, word = _native(native, path), path.removeprefix("algorithm.")
            rows.setdefault((word, json.dumps(value), ours), []).append(name.removesuffix("Config"))
    every = sum(name.endswith("Config") for name in compatible_faces(library))
    lines = [
        f"| setting | there, and in `mrlm.{library}` | in `mrlm` | classes |",
        "|---|---|---|---|",
    ]
    for (word, value, ours), kinds in rows.items():
        which = "all" if len(kinds) == every else ", ".join(kinds)
        lines.append(f"| `{word}` | {value} | {ours} | {which} |")
    return "\n".join(lines)


def _native(config: ExperimentConfig, path: str) -> str:
    """The default of a setting here, as text."""
    if path in (PER_DEVICE, "training.batch_size"):
        return f"{config.training.batch_size} tasks"
    if path in (NUM_AGENTS, WEIGHTS):
        return "as many as the environment has"
    place, _, setting = path.partition(".")
    if path == "training.learning_rate":
        return str(config.algorithm_settings().learning_rate)
    owner: Any = config.algorithm_settings() if place == "algorithm" else config
    owner = owner if place == "algorithm" else getattr(config, place)
    if place == "workflow":
        return "the environment's" if setting == "max_turns" else "off"
    return json.dumps(getattr(owner, setting, None))


TABLES = {
    "trainers": _classes,
    "settings": _settings,
    "defaults": _defaults,
    "parts": _parts,
    "keys": _keys,
}
"""Kind of table -> its text, by library."""

if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
