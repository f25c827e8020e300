"""A dry run's look at a run: its settings in two groups, and what every agent reads first, with the
tokens that are trained on."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from mrlm.build.ineffective import facts_of
from mrlm.build.policies import PlayPlan, is_adapter, make_settings
from mrlm.build.run_plan import RunPlan
from mrlm.build.sources import play_of, source_of
from mrlm.config import ExperimentConfig, normalize, yaml
from mrlm.config.base import Section
from mrlm.core import registry
from mrlm.core.chat import Chat
from mrlm.core.errors import ConfigError, EndpointError, MRLMError
from mrlm.core.matters import judged
from mrlm.core.sync_async import run_async
from mrlm.core.types import Completion
from mrlm.core.user_errors import is_users
from mrlm.learn.policy.loading import load_tokenizer
from mrlm.play.agent import AgentSettings
from mrlm.play.engine import Request

ALWAYS = ("training", "model", "generation", "evaluation", "engine", "record")
"""Sections that every run reads."""
WHEN: Mapping[str, Any] = {
    "data": lambda config: config.data.dataset is not None,
    "opponents": lambda config: config.opponents.every is not None,
    "asynchrony": lambda config: config.training.max_lag > 0,
    "distributed": lambda config: config.distributed.enabled,
}
"""Sections that are read under a condition."""
LONGEST = 1200
"""Characters of a prompt or completion; the middle of a longer one is left out."""
GLUE = "\u00a0"
"""A space at which no line ends."""
ANSWER = "..."
"""The completion in a preview: no model is loaded."""
ROWS = 32
"""Rows whose lengths are measured."""
DIM, TRAINED, PLAIN = "\x1b[2m", "\x1b[1;32m", "\x1b[0m"


def settings_set(config: ExperimentConfig) -> str:
    """The settings that a user set, as a config: with the defaults it is the whole one."""
    settings = config.given()
    contents = {"experiment_name": config.experiment_name, **settings}
    contents["output_dir"] = config.output_dir or f"outputs/{config.experiment_name}"
    return f"# set by you\n{yaml.write(contents)}"


def defaults_that_matter(plan: RunPlan, printed: set[str]) -> list[str]:
    """The defaults that have an effect on a run, as comments; those that are off, or that earlier
    stages have `printed`, are left out, and those of this one are added there."""
    config, facts = plan.config, facts_of(plan)
    resolved = config.resolved()
    sections: dict[str, Any] = {name: getattr(config, name) for name in ALWAYS}
    sections |= {name: getattr(config, name) for name, on in WHEN.items() if on(config)}
    sections[normalize.section_key(config.training.algorithm)] = plan.algorithm
    lines = []
    for name, section in sections.items():
        set_values = config.given().get(name) or {}
        values = resolved.get(name) or {}
        usual = {k: v for k, v in values.items() if k not in set_values and _is_on(v)}
        verdicts = judged(section, usual, facts)
        effective = [f"{k}: {_plain(v)}" for k, v in usual.items() if verdicts[k] is None]
        new = [setting for setting in effective if f"{name}.{setting}" not in printed]
        printed.update(f"{name}.{setting}" for setting in new)
        if new:
            text = f"{name}: {', '.join(setting.replace(' ', GLUE) for setting in new)}"
            lines += textwrap.wrap(text, 98, initial_indent="#   ", subsequent_indent="#     ")
    lines = [line.replace(GLUE, " ") for line in lines]
    return ["# defaults that matter", *lines] if lines else []


def _is_on(value: Any) -> bool:
    """Whether a value is neither missing nor empty, nor a section of its own."""
    return value not in (None, [], {}) and not isinstance(value, dict | Section)


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- prompts ---------------------------------------------------------------------------------------


_Shown = tuple[str, Any, Sequence[int], Sequence[int], bool]
"""Agent, its tokenizer, ids of a prompt and of its completion, and whether it is trained."""


@dataclass
class _Tokenized:
    """A policy without its weights."""

    chat: Chat
    max_context: int = 1 << 20


@dataclass(eq=False)
class _Prompts:
    """An engine that keeps the first prompt of every agent."""

    script: Any
    agents: Sequence[str]
    found: dict[str, tuple[Request, Completion]] = field(default_factory=dict)
    max_context: int = 1 << 20

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        answers = await self.script.generate(requests)
        for request, answer in zip(requests, answers, strict=True):
            self.found.setdefault(str(request.key[-2]), (request, answer))
        if all(agent in self.found for agent in self.agents):
            raise EndpointError("the first prompts of all agents are known")
        return answers

    @property
    def tokenizer(self) -> Any:
        return self.script.tokenizer

    async def load_weights(self, policy: str, weights: object, version: int) -> None:
        """No weights."""

    def tolerance(self, policy: str) -> None:
        """No tolerance: there are no weights."""


def first_prompts(plan: RunPlan, colour: bool) -> list[str]:
    """Every agent's first prompt in a first task, and the tokens of its answer that are trained on:
    in `colour`, or between brackets. No model is loaded; the answers are placeholders. For a data
    set its first row."""
    reason = _reason(plan)
    if reason:
        return [f"first prompt: not shown, {reason}"]
    try:
        turns = list(_first_turns(plan))
    except Exception as error:  # environments and data of users
        if not isinstance(error, MRLMError) and not is_users(error):
            raise
        return [f"first prompt: not shown, {' '.join(str(error).split())}"]
    brackets = "in green" if colour else "between ⟦ ⟧"
    lines = [f"first prompts, with the tokens that are trained on {brackets}:"]
    if plan.rows is None:
        lines[0] = lines[0][:-1] + f" ({ANSWER} is in place of completions):"
    for agent, tokenizer, ids, completion_ids, trained in turns:
        prompt, completion = tokenizer.decode(ids), tokenizer.decode(completion_ids)
        drawn = _drawn(prompt, completion, trained, colour)
        lines += [
            f"  {agent}{'' if trained else ' (not trained)'}:",
            textwrap.indent(drawn, "    "),
        ]
    return lines


class FirstLengths(NamedTuple):
    """Mean tokens of the first texts of a run.

    Args:
        prompt: of the first prompts of all agents, or of the first rows.
        completion: of the completions of these rows.
        apart: of a prompt from the first answer of another agent on.
        answers: answers of others in a prompt, whose tokens are not counted.
    """

    prompt: int
    completion: int
    apart: float
    answers: float


def first_lengths(plan: RunPlan) -> FirstLengths | None:
    """The lengths of a run's first texts; `None` where they cannot be known here. No model is
    loaded. Raises `ModelError`: a tokenizer cannot be loaded."""
    if _reason(plan):
        return None
    turns = [turn for turn in _first_turns(plan, ROWS) if turn[2]]
    if not turns:
        return None
    prompts, completions = [len(turn[2]) for turn in turns], [len(turn[3]) for turn in turns]
    apart, answers = [0.0], [0]
    if plan.rows is None:
        texts = [turn[1].decode(turn[2]) for turn in turns]
        pairs = zip(prompts, texts, strict=True)
        apart = [n * len(text.partition(ANSWER)[2]) / max(1, len(text)) for n, text in pairs]
        answers = [text.count(ANSWER) for text in texts]
    prompt, completion, *others = map(fmean, (prompts, completions, apart, answers))
    return FirstLengths(round(prompt), round(completion), *others)


def _reason(plan: RunPlan) -> str | None:
    """The reason why prompts cannot be known here, or `None`."""
    if any(policy.endpoint is not None for policy in plan.assignment.policies.values()):
        return "an agent's policy is behind an API"
    if plan.rows is None and any(section.remote for section in plan.config.environments):
        return "an environment is in another process"
    return None


def _first_turns(plan: RunPlan, rows: int = 1) -> Iterator[_Shown]:
    """The first turn of every agent, or the turns of some rows."""
    model = plan.config.model
    chats: dict[str, Chat] = {}
    policies: dict[str, Any] = {}
    for name, section in plan.assignment.policies.items():
        source = section.tokenizer or section.model or model.tokenizer_name_or_path
        source = source or model.model_name_or_path
        if source not in chats:
            tokenizer = load_tokenizer(str(source), model.trust_remote_code)
            chats[source] = Chat(tokenizer, model.chat_template_kwargs)
        policies[name] = _Tokenized(chats[source])
    settings_of = make_settings(plan, policies)
    agents = list(settings_of)
    scripted = registry.load("engines", "scripted")
    engines: dict[str, Any] = {}
    exchanges: dict[str, tuple[Request, Completion]] = {}
    for name, policy in policies.items():
        script = scripted([ANSWER], policy.chat.tokenizer)
        engines[name] = _Prompts(script, agents, exchanges)
    if plan.rows is not None:
        yield from _of_rows(plan, settings_of, engines, rows)
        return
    try:
        run_async(play_of(plan, settings_of, engines).take(1))
    except EndpointError:
        if not all(agent in exchanges for agent in agents):
            raise
    for agent, (request, answer) in exchanges.items():
        tokenizer = policies[request.policy].chat.tokenizer
        trained = settings_of[agent].trained and plan.spec.trains_answers
        yield agent, tokenizer, request.prompt_ids, answer.token_ids, trained


def _of_rows(
    plan: RunPlan, settings_of: Mapping[str, AgentSettings], engines: Mapping[str, Any], count: int
) -> Iterator[_Shown]:
    """The turns of the first rows, with the observations that are trained on; of a pair, both
    answers."""
    groups = run_async(source_of(plan, settings_of, engines, None).take(count))
    plan.algorithm.credit(groups)
    for turn in (turn for group in groups for episode in group for turn in episode.turns):
        chat = settings_of[turn.agent].chat
        if chat is None:
            raise ConfigError(f"agent {turn.agent!r} has no tokenizer")
        trained = turn.trained and turn.advantages is not None
        yield turn.agent, chat.tokenizer, turn.prompt_ids, turn.completion_ids, trained


def _drawn(prompt: str, completion: str, trained: bool, colour: bool) -> str:
    """A prompt and a completion, the latter marked if it is trained."""
    from mrlm.tracking.console import printable

    prompt, completion = (printable(_short(text)) for text in (prompt, completion))
    if colour:
        return f"{DIM}{prompt}{PLAIN}{TRAINED if trained else DIM}{completion}{PLAIN}"
    return f"{prompt}⟦{completion}⟧" if trained else prompt + completion


def _short(text: str) -> str:
    half = LONGEST // 2
    left = len(text) - LONGEST
    return text if left <= 0 else f"{text[:half]} [... {left:,} characters ...] {text[-half:]}"


def assignment_text(plan: PlayPlan) -> str:
    """The policies of a plan, with what each is and whose it is."""
    lines = []
    for policy, settings in plan.assignment.policies.items():
        agents = [agent for agent, name in plan.assignment.policy_of.items() if name == policy]
        if settings.endpoint is not None:
            kind = f"{settings.endpoint.model} at {settings.endpoint.base_url}"
        elif settings.trainable:
            kind = "LoRA adapter" if is_adapter(plan, policy) else "own weights"
        else:
            kind = "frozen"
        lines.append(f"policy {policy} ({kind}): {', '.join(agents) or 'no agent'}")
    return "; ".join(lines)
