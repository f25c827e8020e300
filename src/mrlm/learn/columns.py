"""Columns that a model computes for turns before credit assignment, each rank its part."""

from collections.abc import Callable, Sequence

from torch import Tensor

from mrlm.core.episodes import Group
from mrlm.core.timing import span
from mrlm.core.types import COLUMNS, Turn
from mrlm.learn.bases.spec import Spec
from mrlm.learn.credit.groups import column
from mrlm.learn.data.batch import Batch, Sample
from mrlm.learn.data.data_parallel import exchange_columns, micro_batches, write_column
from mrlm.learn.data.samples import openings, parts, samples_of
from mrlm.learn.optimizer import LearnerSettings
from mrlm.learn.policy.policy import Policy

OWN = [name for name in COLUMNS if COLUMNS[name]["by"] == "policy"]
"""Columns from the policy's own forward, all computed in one pass."""


def fill_columns(
    body: Policy,
    settings: LearnerSettings,
    samples: Sequence[Sample],
    compute: Callable[[Batch], dict[str, Tensor]],
    names: Sequence[str],
    title: str,
) -> None:
    """Writes columns on the turns of samples: `compute` gives those (N,) of a micro-batch, by name.
    `title` is their owner in profiles."""
    if not samples:
        return
    with body.scoring(), span(names[0], title):
        columns = [  # read at the end, so that the device need not be waited for between them
            (batch.turns, name, numbers.float())
            for batch, _, _ in micro_batches(body, settings, samples)
            for name, numbers in compute(batch).items()
        ]
        for turns, name, numbers in columns:
            write_column(turns, name, numbers.cpu().numpy())
        exchange_columns(settings.peers, parts(samples, settings.peers.size, body.packed), names)


def annotate(
    policy: Policy,
    settings: LearnerSettings,
    spec: Spec,
    groups: Sequence[Group],
    needs: frozenset[str],
) -> None:
    """Writes the columns in `needs`, and old log-probs where the sampler's do not suffice."""
    if spec.critic.topology != "shared":
        needs -= {"values"}  # computed by a critic
    turns = [turn for group in groups for episode in group for turn in episode.turns]
    policy_turns = [turn for turn in turns if turn.policy == policy.name]
    if not needs and not (spec.reads_old and any(_unscored(turn, spec) for turn in policy_turns)):
        return
    samples = samples_of(groups, policy.name, "turn", credited=False)
    jobs: dict[tuple[str, ...], Sequence[Sample]] = {(x,): samples for x in sorted(needs)}
    if ("old_logprobs",) not in jobs and spec.reads_old:
        # the sampler's log-probs suffice unless missing, truncated, or from older weights
        jobs["old_logprobs",] = [x for x in samples if any(_unscored(t, spec) for t in x.turns)]
    # columns that one pass can compute share it
    whole = [need for need in OWN if samples and len(jobs.get((need,), ())) == len(samples)]
    if len(whole) > 1:
        jobs = {names: chosen for names, chosen in jobs.items() if names[0] not in whole}
        jobs[tuple(whole)] = samples
    elif ("values",) in jobs and spec.critic.per_turn and policy.packed:
        jobs["values",] = openings(samples)
    for names, chosen in jobs.items():
        fill_own(policy, settings, chosen, names)
    if jobs.get(("values",), samples) is not samples:
        turns = (turn for sample in samples for turn in sample.turns)
        for turn, opening in zip(turns, jobs["values",], strict=True):
            turn.values = float(column(opening.turns[0], "values")[0])


def rescore(policy: Policy, settings: LearnerSettings, groups: Sequence[Group]) -> None:
    """Writes `new_logprobs`, the log-probs under the current weights, on a policy's turns."""
    samples = samples_of(groups, policy.name, "turn", credited=False)
    fill_own(policy, settings, samples, ("new_logprobs",))


def fill_own(
    policy: Policy, settings: LearnerSettings, samples: Sequence[Sample], names: Sequence[str]
) -> None:
    """Writes columns of a policy on the turns of samples: any of `OWN`, or a single other one."""

    def compute(batch: Batch) -> dict[str, Tensor]:
        alone = {"ref_logprobs": policy.reference_logprobs, "full_kl": policy.full_kl}
        alone["values"] = policy.values
        if len(names) == 1 and names[0] in alone:
            return {names[0]: alone[names[0]](batch)}
        outputs = policy.forward(batch)
        tensors = {"values": outputs.values, "entropies": outputs.entropy}
        tensors |= dict.fromkeys(("new_logprobs", "old_logprobs"), outputs.logprobs)
        return {name: x for name in names if (x := tensors[name]) is not None}

    fill_columns(policy, settings, samples, compute, names, policy.name)


def _unscored(turn: Turn, spec: Spec) -> bool:
    aged = spec.rescores_lagged and turn.lag > 0
    return turn.logprobs is None or turn.sampling.truncates or aged
