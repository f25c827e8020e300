"""Callbacks of transformers' trainers as callbacks of a run."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mrlm.config.aliases import UNSET, WORDS, FlatWords
from mrlm.config.flat_words import STRATEGIES
from mrlm.config.normalize import NestedSettings, section_key
from mrlm.config.other_libraries import read_table, refused_settings
from mrlm.core.errors import ConfigError
from mrlm.training.run import Callback, Run
from mrlm.training.saving import save

HOOKS = (
    *("on_train_begin", "on_step_begin", "on_step_end", "on_log", "on_evaluate", "on_save"),
    "on_train_end",
)
"""The hooks of transformers' `TrainerCallback` that are called."""


@dataclass
class CallbackState:
    """The part of transformers' `TrainerState` that callbacks read."""

    max_steps: int = 0
    global_step: int = 0
    epoch: float = 0.0
    num_train_epochs: int = 1
    log_history: list[dict[str, Any]] = field(default_factory=list)
    is_world_process_zero: bool = True
    is_local_process_zero: bool = True


class CallbackControl:
    """The requests of a callback: `should_training_stop` and `should_save`.

    Raises:
        ConfigError: on an attempt to set something else.
    """

    should_training_stop: bool = False
    should_save: bool = False

    def __setattr__(self, name: str, value: object) -> None:
        if value and name not in ("should_training_stop", "should_save"):
            raise ConfigError(
                f"callbacks: control.{name} is not supported; set evaluation.every and "
                "training.logging_steps, which decide it"
            )
        super().__setattr__(name, value)


class AdaptedCallback(Callback):
    """A `TrainerCallback` of transformers, called with arguments of its kind: `args` with the flat
    words of the config, `state`, `control`, and `model` and `processing_class` of a run with one
    policy.

    Args:
        callback: with the hooks of `HOOKS`.
    """

    def __init__(self, callback: Any, args: Any = None) -> None:
        self.callback, self.args = callback, args
        self.state, self.control = CallbackState(), CallbackControl()

    def on_train_begin(self, run: Run) -> None:
        self._call(run, "on_train_begin")

    def on_step_begin(self, run: Run) -> None:
        self._call(run, "on_step_begin")

    def on_step_end(self, run: Run, metrics: Mapping[str, float]) -> None:
        self._call(run, "on_step_end")
        if run.step % run.config.training.logging_steps == 0 or run.step == run.total_steps:
            logs = dict(metrics) | {"epoch": self.state.epoch}
            self.state.log_history.append(logs | {"step": run.step})
            self._call(run, "on_log", logs=logs)

    def on_evaluate(self, run: Run, metrics: Mapping[str, float]) -> None:
        self._call(run, "on_evaluate", metrics=dict(metrics))

    def on_save(self, run: Run, folder: Path) -> None:
        self._call(run, "on_save")

    def on_train_end(self, run: Run) -> None:
        self._call(run, "on_train_end")

    def _call(self, run: Run, hook: str, **more: Any) -> None:
        parts = parts_of(run, self.args, self.state)
        args, state = _arguments(run, self.args), parts.pop("state")
        control = getattr(self.callback, hook)(args, state, self.control, **parts, **more)
        control = control or self.control
        if control.should_training_stop:
            run.stop()
        if control.should_save and hook != "on_save":
            control.should_save = False
            if not (run.folder / f"checkpoint-{run.step}").is_dir():
                save(run)


def adapted(callbacks: Sequence[Any] | None, args: Any = None) -> list[Callback]:
    """The callbacks of a trainer (whose config object is `args`), those of transformers adapted.
    Raises `ConfigError`: one is no callback, or has other hooks; says what to use instead."""
    if not isinstance(callbacks, Iterable | None):
        raise ConfigError(f"callbacks must be a list, not {type(callbacks).__name__}; write [...]")
    return [_adapted(index, callback, args) for index, callback in enumerate(callbacks or ())]


def parts_of(run: Run, args: Any = None, state: CallbackState | None = None) -> dict[str, Any]:
    """Parts of transformers' trainers: `state`, in the counts of `args`, and of a run with one
    policy `model` and `processing_class`."""
    state, tasks = state or CallbackState(log_history=run.log.history()), run.source.num_tasks()
    trl = isinstance(args, FlatWords) and type(args).__module__ == "mrlm.trl"
    counts = args.to_dict() if trl else {}  # of optimiser steps in a step
    updates = math.prod(counts.get(name, 1) for name in ("update_epochs", "num_minibatches"))
    state.max_steps, state.global_step = run.total_steps * updates, run.step * updates
    size = run.config.training.batch_size
    state.epoch = run.step * size / tasks if tasks else float(run.step)
    state.num_train_epochs = math.ceil(run.total_steps * size / tasks) if tasks else 1
    state.is_world_process_zero = state.is_local_process_zero = run.peers.main
    parts: dict[str, Any] = {"state": state}
    if len(run.learners) == 1 and run.placement.local:
        policy = run.learners[0].weights_of
        parts |= {"model": policy.model, "processing_class": policy.tokenizer}
    return parts


def _adapted(index: int, callback: Any, args: Any) -> Callback:
    if isinstance(callback, Callback):
        return callback
    kind = callback if isinstance(callback, type) else type(callback)
    where = f"callbacks[{index}] ({kind.__name__})"
    if isinstance(callback, type):
        raise ConfigError(f"{where}: it is a class; give an object of it")
    bases = {cls.__name__: cls for cls in type(callback).__mro__}
    for name, instead in read_table("other_callbacks.yaml").items():
        if name in bases:
            raise ConfigError(f"{where}: use {instead} instead (docs/callbacks.md)")
    base = bases.get("TrainerCallback")
    if base is None:
        raise ConfigError(
            f"{where}: derive it from mrlm.Callback (docs/callbacks.md has its hooks)"
        )
    hooks = [name for name in vars(base) if name.startswith("on_")]
    given = [name for name in hooks if getattr(kind, name) is not getattr(base, name)]
    others = [name for name in given if name not in (*HOOKS, "on_init_end")]
    if others:
        raise ConfigError(
            f"{where}: a run has no hook {', '.join(others)}; derive it from mrlm.Callback "
            f"(docs/callbacks.md), or keep to {', '.join(HOOKS)}"
        )
    return AdaptedCallback(callback, args)


def _arguments(run: Run, args: Any) -> SimpleNamespace:
    """The flat words of a run: those of its trainer's config object `args`, or of its config."""
    settings = NestedSettings(run.config.resolved())
    section = section_key(run.config.training.algorithm)
    words = {name: (*refused.same, None)[0] for name, refused in refused_settings().items()}
    for name, word in WORDS.items():
        value = settings.get(word.path.replace("algorithm", section, 1))
        words[name] = value = None if value is UNSET else value
        if word.kind is bool:
            words[name] = isinstance(value, Mapping) or value == word.value(True)
    words |= {name: "no" if words[at] is None else "steps" for name, at in STRATEGIES.items()}
    words["max_steps"] = words["max_steps"] or -1  # as in transformers
    if isinstance(args, FlatWords):
        words |= {name: value for name, value in args.to_dict().items() if value is not None}
    return SimpleNamespace(**words | {"output_dir": str(run.folder)})
