"""A check-up of a config before a run: prompts with their masks, and four played episodes."""

from collections.abc import Iterator, Sequence

from mrlm.build.policies import LiveObjects
from mrlm.build.preview import first_prompts
from mrlm.build.run import arithmetic_of, plan_of, rehearse
from mrlm.build.run_plan import RunPlan
from mrlm.config import ExperimentConfig
from mrlm.core.episodes import Episode
from mrlm.core.errors import MRLMError
from mrlm.core.progress import counted
from mrlm.core.sync_async import run_async
from mrlm.core.types import Turn
from mrlm.core.user_errors import is_users
from mrlm.doctor.check import Check
from mrlm.learn.policy.loading import free_memory, pick_device
from mrlm.sandbox import opened

TASKS, SAMPLES = 2, 2
"""Tasks that are played, and episodes of each."""


def check_config(config: ExperimentConfig, colour: bool = False) -> Iterator[Check]:
    """Checks of one stage, in order; the last ones play. With `colour`, masks of prompts are in
    colours of a terminal. Raises `ConfigError`: the config cannot be run at all."""
    plan = plan_of(config, LiveObjects())
    agents = counted(len(plan.assignment.policy_of), "agent")
    yield Check("config", "ok", f"{config.training.algorithm}, {agents}")
    prompts = first_prompts(plan, colour)
    missing = len(prompts) == 1
    yield Check("prompts", "warn" if missing else "ok", "\n".join(prompts))
    yield _memory(plan)
    if plan.rows is not None:
        yield Check("episodes", "ok", "none are played: this run reads rows")
        return
    try:
        play, _ = rehearse(config)
        groups = run_async(play.evaluate(TASKS, SAMPLES, greedy=False))
    except Exception as error:  # environments, servers and sandboxes of users
        if not isinstance(error, MRLMError) and not is_users(error):
            raise
        yield Check("episodes", "fail", " ".join(str(error).split()))
        return
    yield from _played([episode for group in groups for episode in group])
    for name, policy in plan.assignment.policies.items():
        if policy.endpoint is not None:
            yield Check("endpoint", "ok", f"{name}: {policy.endpoint.base_url} answers")
    for sandbox in opened():
        verdict = "warn" if sandbox["probe"] == "not probed" else "ok"
        text = f"{sandbox['name']} (tier {sandbox['tier']}): {sandbox['probe']}"
        yield Check("sandbox", verdict, text)


def _memory(plan: RunPlan) -> Check:
    """Memory that a run needs, and what there is."""
    need = arithmetic_of(plan).total_memory
    free = free_memory(pick_device(plan.config.model.device))
    text = f"about {need / 2**30:.2f} GiB are needed, {free / 2**30:.1f} GiB are free"
    if need <= free:
        return Check("memory", "ok", text)
    less = "; smaller training.max_tokens_per_microbatch, gradient_checkpointing or LoRA need less"
    return Check("memory", "fail", text + less)


def _played(episodes: Sequence[Episode]) -> Iterator[Check]:
    """Checks of the played episodes."""
    failed = [episode for episode in episodes if episode.failed]
    if failed:
        text = f"{len(failed)} of {len(episodes)} fail: {failed[0].error}"
        yield Check("episodes", "fail", " ".join(text.split()))
    else:
        yield Check("episodes", "ok", f"{len(episodes)} were played")
    valid = [episode for episode in episodes if not episode.failed]
    turns = [turn for episode in valid for turn in episode.turns if turn.completion_ids]
    if turns:
        yield _template(turns)
        yield _stop(turns)
    rewards = [episode.reward for episode in valid if episode.scored]
    if rewards:
        text = f"rewards {', '.join(f'{reward:.3g}' for reward in rewards)}"
        varied = len(set(rewards)) > 1
        hint = "; if that continues nothing is trained: easier or harder tasks, a larger group_size"
        yield Check("reward", "ok" if varied else "warn", text + hint * (not varied))


def _template(turns: Sequence[Turn]) -> Check:
    """Whether completions have a text."""
    blank = sum(turn.message is not None and not turn.message.content.strip() for turn in turns)
    if blank > len(turns) / 2:
        text = f"{blank} of {len(turns)} completions are empty; look at the prompts above"
        return Check("template", "warn", text)
    return Check("template", "ok", f"{len(turns)} completions with text")


def _stop(turns: Sequence[Turn]) -> Check:
    """Whether completions end by a stop token."""
    cut = sum(turn.finish_reason == "length" for turn in turns)
    if cut < len(turns):
        return Check("stop token", "ok", f"{len(turns) - cut} of {len(turns)} completions stop")
    text = (
        f"all {cut} completions are stopped by max_new_tokens; raise generation.max_new_tokens, or "
        "check whether the model knows its end-of-turn token"
    )
    return Check("stop token", "warn", text)
