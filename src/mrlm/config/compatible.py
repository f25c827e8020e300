"""Classes of other libraries under their names: `mrlm.trl` and `mrlm.comlrl` have the algorithms of
this library with the other's defaults and counts (`compatible.yaml`)."""

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from mrlm.config.errors import InvalidConfig, Problem
from mrlm.config.other_libraries import read_table
from mrlm.core.faces import Face

STEPS = ("max_steps", "save_steps", "eval_steps", "logging_steps", "warmup_steps")
"""Words by which TRL counts optimiser steps."""
COUNTED = ("update_epochs", "num_minibatches", "loss_type")
"""Settings of algorithms on which the words of TRL depend."""
CRITICS = ("ippo", "mappo")


@cache
def compatible_faces(library: str) -> dict[str, Face]:
    """Public name -> its origin, of the classes of another library."""
    faces: dict[str, Face] = {}
    for stem, row in read_table("compatible.yaml")[library].items():
        if "algorithm" not in row:
            continue  # words that several classes share
        config = f"{stem}Config"
        rest = (row["words"], library, row["settings"], row.get("same", {}))
        faces[config] = Face(config, row["algorithm"], "config", config, *rest)
        faces[f"{stem}Trainer"] = Face(f"{stem}Trainer", row["algorithm"], "trainer", config, *rest)
    return faces


def as_here(face: Face, words: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of a config without values that describe the behaviour here; of TRL's, with our name
    for `num_iterations` and for `warmup_steps` below 1, and a list of one loss as that loss."""
    parts, size = words.get("gradient_accumulation_steps") or 1, "per_device_train_batch_size"
    batch = (words.get(size) or face.defaults.get(size, 1)) * parts
    batch *= int(os.environ.get("WORLD_SIZE", "1"))
    same = {**face.same, "steps_per_generation": [parts], "generation_batch_size": [batch]}
    rest = {name: value for name, value in words.items() if value not in same.get(name, ())}
    epochs = rest.pop("num_iterations", None) if face.library == "trl" else None
    if epochs is not None:
        rest["update_epochs"] = epochs
    if face.library == "trl" and 0 < (rest.get("warmup_steps") or 0) < 1:
        rest["warmup_ratio"] = rest.pop("warmup_steps")
    loss = rest.get("loss_type")
    if isinstance(loss, list | tuple) and len(loss) == 1:
        rest["loss_type"] = loss[0]
    return rest


def of_sequences(
    face: Face, fields: dict[str, Any], words: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of an algorithm and the flat words with TRL's `importance_sampling_level:
    sequence` as the loss that has it: averaged as `loss_type` says, clipped at `epsilon`. Raises
    `ConfigError`: a loss that has none."""
    loss, level = fields.get("loss_type", "dapo"), words.get("importance_sampling_level")
    trl = (face.library, face.algorithm) == ("trl", "grpo")
    if not trl or level != "sequence" or loss == "gspo":
        return fields, words
    averages = read_table("compatible.yaml")["trl"]["averages"]
    if loss not in averages:
        text = f"loss_type={loss!r} has no ratio of sequences; use one of {', '.join(averages)}"
        raise InvalidConfig([Problem(f"{face.name}.importance_sampling_level", text)])
    rest = {name: value for name, value in words.items() if name != "importance_sampling_level"}
    clip = {} if words.get("epsilon") else {"clip_range": 0.2}
    return clip | {"aggregation": averages[loss]} | fields | {"loss_type": "gspo"}, rest


def counted(face: Face, words: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The words of a config of another library (flat word -> value, defaults included) with its
    counts as counts of this one: flat words, and settings by their config path. `fields` are the
    algorithm's settings. Raises `ConfigError`: a count that this library cannot have; names the
    nearest that it can."""
    if face.library == "trl":
        return _optimiser_steps(face, words, fields)
    return _nodes(face, words)


def _optimiser_steps(
    face: Face, words: Mapping[str, Any], fields: Mapping[str, Any]
) -> dict[str, Any]:
    """TRL counts optimiser steps; an iteration has one for each epoch and minibatch. Without bf16
    and fp16 it computes in float32."""
    converted = dict(words)
    if words.get("bf16") is False and not words.get("fp16"):
        converted["training.precision"] = "fp32"
    if not words.get("beta"):
        converted.pop("use_bias_correction_kl", None)  # without a divergence it changes nothing
    per_step = fields.get("update_epochs", 1) * fields.get("num_minibatches", 1)
    for name in STEPS if per_step > 1 else ():
        value = words.get(name)
        if value is None or value <= 0:
            continue
        if value % per_step and value != face.defaults.get(name):
            text = (
                f"it counts optimiser steps, of which every step of the run has {per_step} "
                f"(num_iterations x num_minibatches); use {max(1, value // per_step) * per_step}"
            )
            raise InvalidConfig([Problem(f"{face.name}.{name}", text)])
        converted[name] = -(-value // per_step)
    return converted


def _nodes(face: Face, words: Mapping[str, Any]) -> dict[str, Any]:
    """CoMLRL counts what is in its buffers: nodes of a tree, rollouts of an actor-critic, and tasks
    between evaluations."""
    converted = dict(words)
    size = words.get("num_generations") or 1
    turns = words.get("num_turns") or 1
    buffer = converted.pop("rollout_buffer_size")
    minibatch = converted.pop("train_batch_size", None)
    if face.algorithm in CRITICS:
        of_task = size * turns
    elif face.algorithm == "madpo":
        of_task = 1
    else:
        of_task = sum(size**turn for turn in range(turns))
        if turns > 1:
            converted |= {"workflow.name": "tree", "workflow.branches": size}
    if minibatch is not None and buffer % minibatch:
        text = f"it must divide rollout_buffer_size ({buffer}); use {buffer}"
        raise InvalidConfig([Problem(f"{face.name}.train_batch_size", text)])
    converted["training.batch_size"] = tasks = max(1, buffer // of_task)
    if minibatch is not None and minibatch < buffer:
        converted["algorithm.num_minibatches"] = min(tasks, buffer // minibatch)
    if (every := words.get("eval_interval")) is not None and every > 0:
        converted["eval_interval"] = max(1, every // tasks)
    return converted
