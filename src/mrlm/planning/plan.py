"""The size of a run before it starts: episodes, sequences, optimizer steps, memory. No model is
loaded and no environment run; unknown numbers are bounded, with a note."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mrlm.config import ExperimentConfig, PolicyConfig
from mrlm.core import registry
from mrlm.planning.memory import (
    BYTES,
    MEMORY,
    MOST_TOKENS,
    WHOLE,
    MemoryLoad,
    key_bytes,
    model_bytes,
    on_host,
    parts_of,
    peak,
    size_text,
    tokens_in,
)
from mrlm.planning.model_shape import ModelShape
from mrlm.planning.policy_weights import WeightSizes, weights_of
from mrlm.planning.record_size import RecordSize, record_size
from mrlm.play.workflow import as_workflow

if TYPE_CHECKING:
    from mrlm.learn.bases.spec import Spec


@dataclass(slots=True)
class Plan:
    """The counts of a run.

    Args:
        iterations: iterations of the run; `None` if they depend on the number of tasks.
        tasks, samples, agents, turns: per iteration; `turns` is the most joint steps of an episode.
        branches: continuations of every episode after each of them.
        crossed: joint actions of a task besides its samples, if every combination is played.
        prunes: whether only one of several answers to a state is continued.
        evaluated: episodes of an evaluation.
        greedy: episodes of a task that are played greedily and not trained on.
        replayed: most replays of the episodes of a task.
        retrained: of these the ones with a trained turn.
        calls: most completions of an episode, if the workflow declares them; else one per agent and
            joint step.
        parts: most sequences of an episode, if the workflow declares them; else one per agent.
        model_calls: most completions per iteration (0 when training on rows).
        sequences: most training sequences per iteration, over all policies.
        policies: number of trained policies.
        minibatches, epochs: their product is the optimizer steps per iteration and policy.
        microbatches: least number of forward and backward passes per optimizer step.
        tokens: tokens of the longest sequence, as far as it is known.
        memory: policy -> part -> bytes.
        weights: every policy with weights on this machine.
        job: inputs of the memory estimate besides weights.
        record: bound of the size of the run's record; `None` if it trains on rows.
        notes: assumptions.
    """

    algorithm: str
    iterations: int | None
    tasks: int
    samples: int
    agents: int
    trained_agents: int
    turns: int
    rows: bool
    policies: int
    minibatches: int
    epochs: int
    microbatches: int
    tokens: int
    branches: int = 1
    greedy: int = 0
    crossed: int = 0
    replayed: int = 0
    retrained: int = 0
    prunes: bool = False
    evaluated: int = 0
    calls: int | None = None
    parts: int | None = None
    weights: list[WeightSizes] = field(default_factory=list)
    job: MemoryLoad = field(default_factory=MemoryLoad)
    memory: dict[str, dict[str, int]] = field(default_factory=dict)
    record: RecordSize | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def episodes(self) -> int:
        return self.tasks * (self._leaves + self.greedy + self.crossed + self.replayed)

    @property
    def at_once(self) -> int:
        """Most episodes that are played at the same time: of an iteration or an evaluation."""
        return max(0 if self.rows else self.episodes, self.evaluated)

    @property
    def _leaves(self) -> int:
        """Trained episodes of a task."""
        later = max(0, self.turns - 1)
        if self.prunes:
            return self.samples + (self.branches - 1) * later
        return self.samples * self.branches**later

    @property
    def _plays(self) -> int:
        """Calls of the workflow for a task."""
        return self.samples + self.greedy + self.replayed

    @property
    def model_calls(self) -> int:
        if self.calls is not None:
            return 0 if self.rows else self.tasks * self._plays * self.calls
        if self.prunes:
            nodes = self.samples + self.branches * (self.turns - 1)
        else:
            nodes = self.samples * sum(self.branches**turn for turn in range(self.turns))
        per_task = nodes + (self.greedy + self.replayed) * self.turns
        return 0 if self.rows else self.tasks * self.agents * per_task

    @property
    def sequences(self) -> int:
        if self.parts is not None:
            trained = self.trained_agents / max(1, self.agents)
            own_sequences = math.ceil(self.tasks * self.samples * self.parts * trained)
        else:
            own_sequences = self.tasks * self._leaves * self.trained_agents
        return own_sequences + self.tasks * self.retrained

    @property
    def trained_tokens(self) -> int:
        """Most tokens of these sequences, prompts included."""
        return self.sequences * self.tokens

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps per iteration and policy."""
        return self.epochs * self.minibatches

    @property
    def total_memory(self) -> int:
        """Peak bytes of all policies."""
        return peak(self.memory)

    def __str__(self) -> str:
        what = "rows" if self.rows else "tasks"
        deep = self.branches > 1 and self.turns > 1
        forks = f" x {self.branches}^{self.turns - 1} branches" if deep else ""
        if deep and self.prunes:
            forks = f" (and {self.branches - 1} more in each of {self.turns - 1} later turns)"
        played = self.tasks * self._leaves
        lines = [f"one iteration of {self.algorithm}:"]
        factor = f"{self.trained_agents} trained agent(s)"
        if self.parts is not None:
            factor += f", {self.parts} sequence(s) of {self.agents} agent(s) a play,"
        lines.append(
            f"  {self.tasks} {what} x {self.samples}{forks} = {played} episodes"
            f" x {factor} = {self.sequences - self.tasks * self.retrained} trained sequences"
        )
        if self.crossed:
            more = self.tasks * self.crossed
            lines.append(f"  and {more} episodes that combine the same answers in another way")
        if self.replayed:
            what = "with a turn that is trained on" if self.retrained else "not trained on"
            lines.append(f"  and at most {self.tasks * self.replayed} replays, {what}")
        if self.greedy:
            lines.append(f"  and {self.tasks * self.greedy} greedy episodes, not trained on")
        if not self.rows:
            factor = f"{self.episodes} episodes x {self.agents} agent(s) x {self.turns} turn(s)"
            if self.calls is not None:
                tries = self.tasks * self._plays
                factor = f"{tries} plays x {self.calls} completions by {self.agents} agent(s)"
            lines.append(f"  {factor} = at most {self.model_calls} completions")
        lines.append(
            f"  {self.epochs} epoch(s) x {self.minibatches} mini-batch(es) = {self.optimizer_steps}"
            f" optimizer step(s) per policy, each in at least {self.microbatches} micro-batch(es)"
        )
        steps = "as the tasks decide"
        if self.iterations is not None:
            steps = f"{self.iterations} iterations, {self.iterations * self.optimizer_steps}"
            steps += f" optimizer steps per policy ({self.policies} trained)"
        lines.append(f"the run: {steps}")
        for policy, parts in self.memory.items():
            total = sum(parts.values())
            inside = ", ".join(f"{name} {size_text(count)}" for name, count in parts.items())
            lines.append(f"memory of {policy}: about {size_text(total)} ({inside})")
        if self.memory:
            lines.append(f"peak memory: about {size_text(self.total_memory)}")
        if self.record is not None:
            lines.append(str(self.record))
        return "\n".join([*lines, *(f"note: {factor}" for factor in self.notes)])


def arithmetic(
    config: ExperimentConfig,
    *,
    num_agents: int,
    trained_agents: int,
    iterations: int | None = None,
    max_turns: int | None = None,
    parameters: Mapping[str, int] | None = None,
    shapes: Mapping[str, ModelShape] | None = None,
    policies: Mapping[str, PolicyConfig] | None = None,
    agents_per_policy: Mapping[str, int] | None = None,
    accelerated: bool = False,
    free: float = math.inf,
) -> Plan:
    """Count the work of one stage of an experiment.

    Args:
        num_agents, trained_agents: number of agents, and of those whose policies are trained.
        iterations: iterations of the run, if the tasks have been counted.
        max_turns: most turns of an episode, if the environments declare it and the config does not.
        parameters: policy -> number of weights, if it is known better than from its shape.
        shapes: policy -> shape; by default read from the models' folders, or known by their names.
        policies: the policies of the run; by default those of the config.
        agents_per_policy: policy -> number of agents that use it; by default one each.
        accelerated: whether the models are on a device that is not a CPU.
        free: bytes of memory before the run, half of which micro-batches of `auto` take.
    """
    algorithm = config.algorithm_settings()
    plan = _counted(config, algorithm, num_agents, trained_agents, max_turns)
    plan.iterations = iterations or config.training.num_iterations
    _say_what_is_open(plan, config, algorithm.spec.sampling)
    policies = policies or config.policies or {"policy": PolicyConfig()}
    agents_per_policy = agents_per_policy or {"policy": num_agents}
    plan.weights, unknown = weights_of(
        config, algorithm.spec, policies, agents_per_policy, parameters or {}, shapes
    )
    plan.job = _job_of(config, plan, accelerated, free)
    steps = plan.policies * plan.minibatches
    per_step = math.ceil(plan.sequences / steps) if steps else 0
    together = max(1, plan.job.tokens // plan.tokens)
    plan.microbatches = max(plan.microbatches, math.ceil(per_step / together))
    plan.job = replace(plan.job, once=plan.microbatches == 1)
    plan.record = _record_of(config, plan, algorithm.spec)
    plan.memory = {policy.name: parts_of(policy, plan.job) for policy in plan.weights}
    plan.notes += unknown
    if plan.memory:
        plan.notes += _bounded(plan)
        plan.notes.append(MEMORY)
    return plan


def _bounded(plan: Plan) -> list[str]:
    """Notes on memory that is not on the device, or not at once."""
    notes: list[str] = []
    if hosts := sum(on_host(policy, plan.job) for policy in plan.weights):
        text = size_text(hosts)
        notes.append(f"the host keeps {text} of the optimizer (training.optimizer_offload)")
    whole = replace(plan.job, most_keys=None)
    for policy in plan.weights:
        needed = parts_of(policy, whole).get("kv_cache", 0)
        if plan.memory[policy.name].get("kv_cache", 0) < needed:
            notes.append(
                f"keys and values of all rows of {policy.name} would take {size_text(needed)}; "
                "rows wait until they fit into engine.kv_mib"
            )
    return notes


def _record_of(config: ExperimentConfig, plan: Plan, spec: Spec) -> RecordSize | None:
    if plan.rows:
        return None
    episodes = plan.episodes // plan.tasks * (1 + spec.sampling.refills)
    return record_size(
        config,
        spec.columns,
        groups=plan.tasks,
        episodes=episodes,
        calls=plan.calls or plan.agents * plan.turns,
        iterations=plan.iterations,
    )


def _most_tokens(config: ExperimentConfig, plan: Plan, job: MemoryLoad, free: float) -> int:
    """Tokens of a micro-batch; `auto` as in `build/microbatch.py`."""
    limit = config.training.max_tokens_per_microbatch
    if limit != "auto":
        return limit
    free -= sum(model_bytes(model, job) for model in plan.weights if model.owns)
    shapes = [model.shape for model in plan.weights if model.trainable and model.shape is not None]
    how = job.computed, job.checkpointing, job.lean
    return min((tokens_in(free / 2, shape, *how) for shape in shapes), default=MOST_TOKENS)


def _job_of(config: ExperimentConfig, plan: Plan, accelerated: bool, free: float) -> MemoryLoad:
    training, width = config.training, BYTES[config.model.torch_dtype]
    precise = training.precision in ("auto", "fp32")
    limit = config.engine.kv_mib if config.engine.name == "lean" else None
    at_once = plan.episodes if accelerated and not plan.rows else plan.at_once  # there rows wait
    again = config.engine.name == "lean" and (plan.turns > 1 or (plan.calls or 0) > plan.agents)
    job = MemoryLoad(
        width=width,
        computed=width if precise else 2,
        masters=training.master_weights and width < WHOLE,
        moments=0 if training.optimizer == "sgd" else 2,
        checkpointing=training.gradient_checkpointing,
        lean=config.model.lean and training.precision != "fp16",
        plays=at_once > 0,
        rows=min(config.engine.batch_size, at_once * plan.agents),
        length=plan.tokens,
        most_keys=None if limit is None else limit << 20,
        offloaded=training.optimizer_offload,
        kept=config.engine.cache_mib << 20 if again else 0,
        agents=plan.agents,
        accelerated=accelerated,
        quantization=config.model.quantization,
    )
    played = max(plan.episodes, plan.evaluated) * plan.agents * plan.tokens
    keys = [key_bytes(m.shape, job.computed) for m in plan.weights if m.shape is not None]
    job = replace(job, kept=min(job.kept, played * max(keys, default=0)))
    most = _most_tokens(config, plan, job, free)
    return replace(job, tokens=min(most, max(1, plan.trained_tokens)))


def _counted(
    config: ExperimentConfig, algorithm: Any, agents: int, trained: int, max_turns: int | None
) -> Plan:
    training, generation, sampler = config.training, config.generation, algorithm.spec.sampling
    rows = sampler.rows or config.data.dataset is not None
    size = algorithm.group_size
    learning = [name for name, policy in config.policies.items() if policy.trainable]
    plan = Plan(
        algorithm=training.algorithm,
        iterations=None,
        tasks=training.batch_size,
        samples=size,
        agents=agents,
        trained_agents=trained,
        turns=1,
        rows=rows,
        policies=len(learning) or trained,
        minibatches=algorithm.num_minibatches,
        epochs=algorithm.update_epochs,
        microbatches=training.gradient_accumulation_steps,
        greedy=int(sampler.greedy),
        crossed=size**agents - size if sampler.cross is not None and not rows else 0,
        evaluated=config.evaluation.episodes * config.evaluation.samples,
        tokens=0,
    )
    if not rows:
        _count_plays(plan, config, max_turns)
    if sampler.replays is not None and not rows:
        plan.replayed = size * sampler.replays.number(trained, plan.turns)
        plan.retrained = plan.replayed if sampler.replays.kind == "alternatives" else 0
    plan.tokens = (generation.max_prompt_tokens or 0) + plan.turns * generation.max_new_tokens
    return plan


def _count_plays(plan: Plan, config: ExperimentConfig, max_turns: int | None) -> None:
    """Set the counts that follow from the declarations of the workflow, without playing."""
    name = config.workflow.name
    plugin = registry.load("workflows", name)
    workflow = as_workflow(plugin, config.workflow.constructor_arguments(plugin))
    plan.branches, plan.prunes = workflow.spec.branches, workflow.spec.prunes
    limit = config.workflow.parameters.get("max_turns")
    limits = [section.max_turns for section in config.environments if section.max_turns]
    if isinstance(limit, int):
        plan.turns = limit
    elif workflow.spec.turns is not None:
        plan.turns = workflow.spec.turns
    elif limits:
        plan.turns = max(limits)
    elif max_turns is not None:
        plan.turns = max_turns
    else:
        plan.notes.append("one turn per episode is assumed: no max_turns is set")
    plan.calls = workflow.completions(plan.agents, plan.turns)
    plan.parts = workflow.sequences(plan.agents, plan.turns)
    if plan.calls is None and ":" in name:
        plan.notes.append(
            f"completions: workflow {name} does not declare its model calls (a method "
            "completions(agents, turns)); once per agent and turn is assumed; it may be more"
        )


def _say_what_is_open(plan: Plan, config: ExperimentConfig, sampling: Any) -> None:
    if config.generation.max_prompt_tokens is None:
        plan.notes.append("prompt tokens are not counted: generation.max_prompt_tokens is not set")
    if sampling.refills:
        times = 1 + sampling.refills
        plan.notes.append(f"groups without advantage are replaced: up to {times} times as many")
    most = config.evaluation.replays(plan.iterations or 1, plan.tasks * plan.samples)
    if plan.agents > 1 and most:
        plan.notes.append(f"evaluation.effects: at most {most} replays an evaluation; 0 for none")
    if (outer := sampling.rounds) is not None:
        plan.notes.append(
            f"each round begins with one completion of every row, goes over them {outer.passes} "
            f"time(s){' and over those of the round before' if outer.previous else ''}"
        )
