"""`mrlm plan`: estimates memory and time of a step on one device or many."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrlm.cli._options import no_experiment
from mrlm.core import registry
from mrlm.core.errors import ConfigError, MRLMError

if TYPE_CHECKING:
    from mrlm.build.preview import FirstLengths
    from mrlm.build.run_plan import RunPlan
    from mrlm.config import ExperimentConfig
    from mrlm.planning.devices import Device
    from mrlm.planning.layout import Place
    from mrlm.planning.plan import Plan
    from mrlm.planning.timing import Lengths

PROMPT = 256
"""Tokens of a prompt where no setting limits them."""
ENGINES = ("lean", "vllm")
SERVERS = ("vllm", "sglang", "mrlm")
"""Engines whose weights are in another process, on devices of their own."""


def plan(
    overrides: list[str] | None = None,
    config: Path | None = None,
    devices: int = 1,
    nodes: int | None = None,
    device: str = "auto",
    strategy: str = "auto",
    engine: str | None = None,
    prompt_tokens: int | None = None,
    completion_tokens: int | None = None,
    latency: float = 0.0,
    max_lag: int | None = None,
    params: str | None = None,
    layers: int | None = None,
    hidden: int | None = None,
    vocab: int | None = None,
    as_json: bool = False,
) -> None:
    """Estimate what a run needs: memory per device, time per step, and how both scale."""
    from mrlm.config import load_config
    from mrlm.planning import estimate, report
    from mrlm.planning.devices import device_here, find_device

    if config is None:
        raise no_experiment(overrides or ())
    _check_choice("--strategy", strategy, [*estimate.STRATEGIES, "auto"])
    _check_choice("--engine", engine or ENGINES[0], ENGINES)
    if device == "auto" and devices > 1 and device_here() == "cpu":
        device = "h100"  # several processors are no plan
    what = find_device(device)
    many = estimate.nodes_of(devices, nodes, what)
    loaded = load_config(config, overrides or ())
    options = (prompt_tokens, completion_tokens, latency), (params, layers, hidden, vocab)
    outputs: list[Any] = []
    for name, stage in loaded.stage_configs():
        counts, lengths, needs = _counts(stage, what, engine, *options)
        lag = stage.training.max_lag if max_lag is None else max_lag
        requirements = (counts, lengths, what, strategy, devices, many, needs, lag)
        rows = estimate.sweep(*requirements)
        if not rows or rows[-1].place.devices != devices:
            rows = [*rows, estimate.best(*requirements)]
        placement = rows[-1].place
        settings = [*(overrides or ()), *_overrides(stage, lag, placement)]
        command = report.command_of(placement, str(config), settings)
        results = (counts, lengths, what, rows, command)
        if as_json:
            outputs.append(({"stage": name} if loaded.stages else {}) | report.data(*results))
        else:
            outputs.append(f"stage {name}\n" * bool(loaded.stages) + report.text(*results))
    data = outputs if loaded.stages else outputs[0]
    print(json.dumps(data, indent=1) if as_json else "\n\n".join(outputs))


def memory_of(stage: ExperimentConfig, device: str) -> str:
    """The memory that a stage needs on one device (as in `--device`), as text. Raises
    `ConfigError`: the device is unknown, or the size of the model."""
    from mrlm.planning import estimate, report
    from mrlm.planning.devices import find_device

    what = find_device(device)
    counts, lengths, needs = _counts(stage, what, None, (None, None, 0.0), (None, None, None, None))
    how = "auto", 1, 1, needs, stage.training.max_lag
    chosen = estimate.best(counts, lengths, what, *how)
    return report.memory_text(counts, what, chosen)


def _overrides(stage: ExperimentConfig, lag: int, placement: Place) -> list[str]:
    """Settings of a recommended place that differ from those of the stage."""
    settings = [f"training.max_lag={lag}"] * (lag != stage.training.max_lag)
    if placement.engines and placement.strategy != "ray" and stage.engine.name not in SERVERS:
        settings += ["engine.name=vllm", "engine.base_url=http://ENGINE:8000"]
    return settings


def _counts(
    stage: ExperimentConfig,
    device: Device,
    engine: str | None,
    assumptions: tuple[int | None, int | None, float],
    model: tuple[str | None, int | None, int | None, int | None],
) -> tuple[Plan, Lengths, Any]:
    """The counts of a stage, its assumed text lengths, and the needs of its algorithm."""
    from mrlm.build.policies import LiveObjects
    from mrlm.build.precision import decided
    from mrlm.build.run import arithmetic_of, plan_of
    from mrlm.planning.estimate import Needs
    from mrlm.planning.layout import USABLE
    from mrlm.planning.model_shape import parameters_of, shape_of_size, similar
    from mrlm.planning.timing import Lengths

    prompt, mean, latency = assumptions
    generation = stage.generation
    if mean is not None and mean > generation.max_new_tokens:
        raise ConfigError(
            f"--completion-tokens {mean}: completions end at generation.max_new_tokens="
            f"{generation.max_new_tokens}; raise that, or give less"
        )
    stage = decided(stage, "cpu" if device.shared else "cuda")
    size, layers, hidden, vocab = model
    if size is None and any(item is not None for item in (layers, hidden, vocab)):
        raise ConfigError("--layers, --hidden and --vocab describe the model of --params; set it")
    weights = None if size is None else parameters_of(size)
    shape = None if weights is None else shape_of_size(weights, layers, hidden, vocab)
    run = plan_of(stage, LiveObjects())
    first = _measured(run)
    prompt, mean, note = _set_lengths(run, prompt, mean, first)
    free = USABLE * device.memory
    plan = arithmetic_of(run, shape=shape, parameters=weights, free=free)
    assignment = run.assignment
    here = [name for name, policy in assignment.policies.items() if policy.endpoint is None]
    unknown = set(here) - {item.name for item in plan.weights if item.shape is not None}
    if unknown:
        name = sorted(unknown)[0]
        path = assignment.policies[name].model or stage.model.model_name_or_path
        raise ConfigError(
            f"policy {name}: {path} is neither a local model folder nor known by its name"
            f"{similar(path)}; give its size with --params, such as --params 7B"
        )
    plan.notes += note
    if mean is None and not plan.rows:
        text = "every completion is assumed to have maximal length; set --completion-tokens"
        plan.notes.append(text)
    mean = mean or generation.max_new_tokens
    longest = mean if run.rows is not None else generation.max_new_tokens
    spec = stage.algorithm_settings().spec
    engine = engine or ("vllm" if stage.engine.name in SERVERS else "lean")
    needs = Needs(spec.columns, spec.reads_old)
    apart = 0 if first is None else min(prompt, first.apart + first.answers * mean)
    lengths = Lengths(prompt, mean, longest, latency, engine, apart=round(apart))
    return plan, lengths, needs


def _set_lengths(
    run: RunPlan, prompt: int | None, mean: int | None, first: FirstLengths | None
) -> tuple[int, int | None, list[str]]:
    """Tokens of a prompt, as given or as the first ones have; those of a row's completion likewise;
    and a note on them. The config of the run has them as its limits afterwards."""
    limit, rows = run.config.generation.max_prompt_tokens, run.rows is not None
    note: list[str] = []
    if prompt is None and first is not None:
        prompt = min(first.prompt, limit or first.prompt)
        note = [f"prompts are assumed to be as long as the first ones: {prompt} tokens"]
    elif prompt is None and limit is None:
        note = [f"prompts are assumed to have {PROMPT} tokens; set --prompt-tokens"]
    lengths = {"max_prompt_tokens": prompt or limit or PROMPT}
    if rows and first is not None:
        lengths["max_new_tokens"] = mean = mean or max(1, first.completion)
    run.config = run.config.merged({"generation": lengths})
    return lengths["max_prompt_tokens"], mean, note


def _measured(run: RunPlan) -> FirstLengths | None:
    """The lengths of a run's first texts; `None` where its tokenizer, environment or rows are
    not here."""
    from mrlm.build.preview import first_lengths
    from mrlm.core.user_errors import is_users

    try:
        return first_lengths(run)
    except Exception as error:  # environments and data of users
        if not isinstance(error, MRLMError) and not is_users(error):
            raise
        return None


def _check_choice(option: str, value: str, choices: Any) -> None:
    if value not in choices:
        raise ConfigError(registry.unknown(value, list(choices), option))
