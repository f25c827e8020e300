"""Experiments: a config trained to its end, stage after stage, each from the models of the previous
one; and a dry run that only reports."""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mrlm.build.async_play import describe
from mrlm.build.folder import claim, has_earlier_run, run_folder
from mrlm.build.ineffective import Verdicts, refuse_idle, verdicts
from mrlm.build.lock import unlock
from mrlm.build.policies import LiveObjects
from mrlm.build.precision import precision_text, with_precision
from mrlm.build.preview import assignment_text, defaults_that_matter, first_prompts, settings_set
from mrlm.build.recorded import recorded_config
from mrlm.build.run import arithmetic_of, build, plan_of, run_of
from mrlm.build.run_plan import RunPlan
from mrlm.build.sources import total_steps
from mrlm.config import ExperimentConfig, diff, load_config, normalize
from mrlm.config.paths import STAGE
from mrlm.core.errors import ConfigError
from mrlm.core.log import log
from mrlm.core.process_group import Peers
from mrlm.distributed import join
from mrlm.learn.checkpoint import checkpoints, step_of, write_json, writing
from mrlm.learn.policy.loading import load_tokenizer, model_folders, pick_device
from mrlm.planning.memory import MEMORY
from mrlm.record.reader import METRICS, json_rows
from mrlm.runs import ENDS, TrainResult, closed, handling, interrupt, latest
from mrlm.training.adapted_callbacks import adapted
from mrlm.training.run import Callback

MODELS = "models.json"
"""File of a stage that began with models of the previous one: policy -> its model's folder."""


NAMES_STAGE = ("reward_model", "model")
"""Settings of an environment that may name the model of an earlier stage."""
TEACHER = "teacher_model"
"""The setting of an algorithm that may."""


@handling(ENDS, interrupt)
def run_experiment(
    config: ExperimentConfig,
    resume: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrainResult:
    """Run a config, stage after stage; a stage starts from the models of the previous one.

    Args:
        config: the experiment.
        resume: the run folder to continue from; finished stages are not repeated.
        callbacks: hooks of every stage.

    Raises:
        KeyboardInterrupt: interrupted; the run was saved and can be resumed.
    """
    if not isinstance(config, ExperimentConfig):
        raise ConfigError(
            f"run_experiment: config is a {type(config).__name__}; give an ExperimentConfig, such "
            "as mrlm.load_config of a file, or mrlm.ExperimentConfig(**settings)"
        )
    callbacks = adapted(callbacks)
    peers = join(config.distributed)
    stages = config.stage_configs()
    if len(stages) == 1 and not config.stages:
        _check_resumable(config, resume)
        _with_stages(config, run_folder(config), [])
        checkpoint = Path(resume).expanduser() if resume else None
        return closed(build(config, LiveObjects(callbacks=callbacks), checkpoint))
    folder = run_folder(config)
    checked = [_checked(name, stage, peers) for name, stage in stages]
    for index, (_, stage) in enumerate(stages):  # of a stage that does not exist
        _with_stages(stage, folder, [label for label, _ in stages[:index]])
    refuse_idle(*(reasons for _, reasons in checked))
    peers.first(lambda: claim(folder, resume is None and has_earlier_run(folder, pipeline=True)))
    try:
        return _run_stages(config, [plan for plan, _ in checked], folder, resume, callbacks, peers)
    finally:
        if peers.main:
            unlock(folder)


def _run_stages(
    config: ExperimentConfig,
    plans: list[RunPlan],
    folder: Path,
    resume: str | os.PathLike[str] | None,
    callbacks: Sequence[Callback],
    peers: Peers,
) -> TrainResult:
    """Run the stages of an experiment that are not finished, in its folder. Each of the `plans` is
    left to its run."""
    stages = config.stage_configs()
    results: dict[int, TrainResult] = {}
    trained: dict[str, str] = {}
    before: set[str] = set()
    for index, (name, stage) in enumerate(stages):
        stage_folder = folder / f"{index + 1}-{name}"
        plan = plans.pop(0)
        parts = LiveObjects(callbacks=callbacks, models=_inherited(stage, trained, before))
        placed = _with_stages(stage, folder, [label for label, _ in stages[:index]])
        sections = [*stage.environments, *stage.evaluation.environments]
        again = placed is not stage or any(x.lent_policy in parts.models for x in sections)
        stage = placed.model_copy()  # an experiment of its own, in its folder
        stage.experiment_name = f"{config.experiment_name}-{name}"
        stage.output_dir = str(stage_folder)
        if resume is not None and peers.first(
            partial(_finished, stage_folder, name, stage, index == len(stages) - 1)
        ):
            log.info("stage %s is finished", name)
        else:
            saved = resume is not None and peers.first(partial(checkpoints, stage_folder))
            joined = join(stage.distributed)
            if again:  # an environment has a model of an earlier stage
                plan = plan_of(stage, parts, joined)
            else:
                plan.config, plan.parts, plan.peers = with_precision(stage), parts, joined
            if saved:
                same = _taken(stage_folder, parts).items() & _noted(stage_folder).items()
                _check_resumable(recorded_config(plan, stage_folder), stage_folder, dict(same))
            run = run_of(plan, stage, stage_folder if saved else None)
            if peers.main:
                _note_models(run.folder, parts)
            results[index] = closed(run)
        if plan.spec.scalar_head:
            continue  # it trained a scorer: the next stage starts from the policies before it
        trained = model_folders(stage_folder / "final") or {"policy": str(stage_folder / "final")}
        before = {label for label, section in stage.policies.items() if section.trainable}
    last_stage = folder / f"{len(stages)}-{stages[-1][0]}"
    peers.first(lambda: _link_final(folder, last_stage))
    if not results:
        text = "%s: every stage is finished; raise training.num_iterations of the last to continue"
        log.info(text, folder)
        history = peers.first(lambda: list(json_rows(last_stage, METRICS)))
        results[len(stages) - 1] = TrainResult(latest(history), history, folder)
    rows = [row | {"stage": index} for index, done in results.items() for row in done.history]
    return TrainResult(results[max(results)].metrics, rows, folder)


def at_most(config: ExperimentConfig, steps: int) -> ExperimentConfig:
    """The experiment with at most `steps` iterations in every stage."""

    def cut(stage: ExperimentConfig) -> int:
        if stage.training.num_iterations is None:
            plan = plan_of(stage, LiveObjects())
            return min(steps, total_steps(stage.training, plan.spec, plan.num_tasks))
        return min(steps, stage.training.num_iterations)

    if not config.stages:
        return config.merged({"training": {"num_iterations": cut(config)}})
    stages = []
    base = {key: value for key, value in config.given().items() if key != "stages"}
    for section, (name, stage) in zip(config.stages, config.stage_configs(), strict=True):
        changes = normalize.normalise(section.changes, base=base)
        shorter = {"training": {"num_iterations": cut(stage)}}
        stages.append({"name": name, **normalize.merge(changes, shorter)})
    return config.merged({"stages": stages})


def dry_run(config: ExperimentConfig, colour: bool = False) -> tuple[str, list[str]]:
    """A report on a run: its settings, of every stage the defaults that matter, the batch
    arithmetic and the first prompts, and problems. No model is loaded and nothing is written.

    Args:
        config: the experiment.
        colour: write with colours of a terminal.
    """
    text = [settings_set(config)]
    problems: list[str] = []
    stage_verdicts: list[Verdicts] = []
    seen_defaults: set[str] = set()
    formula = False
    for name, stage in config.stage_configs():
        title = f"stage {name}: " if config.stages else ""
        try:
            plan = plan_of(stage, LiveObjects())
            text += defaults_that_matter(plan, seen_defaults)
            text.append(f"{title}{assignment_text(plan)}\nschedule: {plan.schedule}")
            text.append(precision_text(stage, plan.config))
            text += describe(plan)
            counts = arithmetic_of(plan)
            formula = formula or MEMORY in counts.notes
            counts.notes = [note for note in counts.notes if note != MEMORY]
            text.append(str(counts))
            stage_verdicts.append(verdicts(plan))
            text += first_prompts(plan, colour)
            pick_device(plan.config.model.device)
        except ConfigError as error:
            problems.append(f"{title}{error}")
    try:
        refuse_idle(*stage_verdicts)
    except ConfigError as error:
        problems.append(str(error))
    if formula:  # the same for every stage
        text.append(f"note: {MEMORY}")
    return "\n".join(text), problems


def _finished(folder: Path, name: str, stage: ExperimentConfig, last: bool) -> bool:
    """Whether a stage can be skipped; the last one may have been given more iterations."""
    iterations, saved = stage.training.num_iterations, checkpoints(folder)
    ended = (folder / "final").exists()
    if not ended or iterations is None or not saved or (step := step_of(saved[0])) >= iterations:
        return ended
    if not last:
        text = "stage %s ended after %d of %d iterations and is not trained on, since the next one "
        text += "begins with what it had learned; for more of it train in another folder"
        log.warning(text, name, step, iterations)
    return not last


def _note_models(folder: Path, parts: LiveObjects) -> None:
    """Write the initial models of a stage to its folder; its config does not contain them."""
    if parts.models:
        with writing(folder / MODELS):
            write_json(folder / MODELS, _taken(folder, parts))


def _taken(folder: Path, parts: LiveObjects) -> dict[str, str]:
    """The initial models of a stage in a folder, by policy, relative to the folder."""
    return {name: os.path.relpath(path, folder) for name, (path, _) in parts.models.items()}


def _noted(folder: Path) -> dict[str, str]:
    """The content of the file that `_note_models` wrote; nothing, if it wrote none."""
    file = folder / MODELS
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _checked(name: str, stage: ExperimentConfig, peers: Peers) -> tuple[RunPlan, Verdicts]:
    """The plan of a stage, checked before anything is trained or moved, and its settings."""
    try:
        plan = plan_of(stage, LiveObjects(), peers)
        for section in plan.assignment.policies.values():
            if section.endpoint is not None:
                continue
            load_tokenizer(section.model or stage.model.model_name_or_path)
        return plan, verdicts(plan)
    except ConfigError as error:
        raise type(error)(f"stage {name}: {error}") from error


def _check_resumable(
    config: ExperimentConfig,
    resume: str | os.PathLike[str] | None,
    inherited: Collection[str] = (),
) -> None:
    """Check that a run is continued with its own config, except for settings that may change and
    where the models are that policies took over, the `inherited` ones."""
    if resume is None:
        return
    folder = Path(resume).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"--resume {folder}: folder {str(folder)!r} does not exist")
    run_folder = folder.parent if folder.name.startswith("checkpoint-") else folder
    config_file = run_folder / "config.yaml"
    if not config_file.is_file():
        raise ConfigError(f"{folder}: it has no config.yaml, so it is not a run folder")
    changes = diff(with_precision(load_config(config_file)), with_precision(config))
    moved = tuple(f"policies.{name}.{key}:" for name in inherited for key in ("model", "tokenizer"))
    changes = [change for change in changes if not change.startswith(moved)]
    if config.training.precision == "auto" or "precision" not in config.training.model_fields_set:
        changes = [
            f"{change}: auto decides by the machine; set it, or resume on one like the first"
            if change.startswith("training.precision:")
            else change
            for change in changes
        ]
    if changes:
        raise ConfigError(
            f"{folder} was started with another config, so it cannot be resumed with this one:\n  "
            + "\n  ".join(changes)
        )


def _inherited(
    stage: ExperimentConfig, trained: dict[str, str], before: Collection[str]
) -> dict[str, tuple[Any, Any]]:
    """The initial models of a stage: each policy from the one of its name in the stage before, or
    from the only one. A frozen policy that names its model and was not trained `before` keeps it,
    as does a new one where several were trained, and one behind an API has none."""
    if not trained:
        return {}
    names = list(trained)
    if stage.policies:
        names = [
            name
            for name, section in stage.policies.items()
            if section.endpoint is None and (section.model is None or name in before)
        ]
    only = next(iter(trained.values())) if len(trained) == 1 else None
    models = {name: (trained.get(name, only), None) for name in names}
    missing = [name for name, (path, _) in models.items() if path is None]
    if missing:
        raise ConfigError(
            f"stages: policy {missing[0]!r} does not exist in the stage before, which trained "
            f"{', '.join(trained)}"
        )
    return models


def _with_stages(stage: ExperimentConfig, folder: Path, before: Sequence[str]) -> ExperimentConfig:
    """A stage with the folders of earlier stages' models in its environments and its algorithm."""

    def place(section: Mapping[str, Any]) -> dict[str, Any]:
        return {k: trained(k, x) if k in NAMES_STAGE else x for k, x in section.items()}

    def trained(key: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: trained(key, x) for name, x in value.items()}
        if not (isinstance(value, str) and value.startswith(STAGE)):
            return value
        name, _, policy = value.removeprefix(STAGE).partition("/")
        if name not in before:
            names = ", ".join(before) or "none"
            raise ConfigError(
                f"{key}='{value}': no earlier stage is called {name!r} (earlier stages: {names})"
            )
        return str(folder / f"{before.index(name) + 1}-{name}/final" / policy)

    sections, own = stage.given(), normalize.section_key(stage.training.algorithm)
    environments = sections.get("environments", [])
    evaluated = sections.get("evaluation", {}).get("environments", [])
    teacher = sections.get(own, {}).get(TEACHER)
    placed = [*map(place, environments)], [*map(place, evaluated)], trained(TEACHER, teacher)
    if placed == (environments, evaluated, teacher):
        return stage
    changes = {"environments": placed[0], "evaluation": {"environments": placed[1]}}
    return stage.merged(changes | ({} if teacher is None else {own: {TEACHER: placed[2]}}))


def _link_final(folder: Path, last: Path) -> None:
    """Make `final` of the run a link to that of the last stage."""
    link = folder / "final"
    if link.is_symlink():
        link.unlink()
    link.symlink_to(last.relative_to(folder) / "final")
