"""Batches of which losses are worked out by hand."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from mrlm.algorithms.sft import SFT
from mrlm.core.types import SamplingParams, Turn
from mrlm.learn import ops
from mrlm.learn.data.batch import Outputs, merge, pack
from mrlm.learn.policy.policy import Policy

# Two sequences of 4 and 2 tokens, with advantages +1 and -1, under four policies.
NEW = [-1.0, -0.5, -2.0, -0.1, -0.7, -1.2]
OLD = [-1.1, -0.6, -1.5, -0.3, -0.7, -1.5]
REF = [-1.2, -0.4, -1.8, -0.2, -0.9, -1.0]
BEHAVIOUR = [-1.15, -0.5, -1.6, -0.3, -0.65, -2.5]


def b0(sign: float = 1.0, turns: tuple[int, ...] = (4,), sampling: SamplingParams | None = None):
    """The fixture as a batch; `turns` cuts the first sequence."""
    sampling = sampling or SamplingParams(max_new_tokens=4)
    samples, start = [], 0
    for advantage, lengths in ((sign, turns), (-sign, (2,))):
        prompt, found = [7], []
        for length in lengths:
            stop = start + length
            turn = Turn("a", "p", list(prompt), list(range(length)), BEHAVIOUR[start:stop])
            turn.old_logprobs, turn.ref_logprobs = OLD[start:stop], REF[start:stop]
            turn.advantages, turn.sampling = advantage, sampling
            found.append(turn)
            prompt, start = [*prompt, *turn.completion_ids, 9], stop
        samples += merge(found, unit=len(samples), rollout=len(samples))
    return pack(samples)


def outputs(logprobs=NEW) -> Outputs:
    values = torch.tensor(logprobs, requires_grad=True)
    return Outputs(values, torch.zeros(len(logprobs)))


def both(monkeypatch, job):
    """What a job returns in two threads that exchange what processes would."""
    ranks, meet = threading.local(), threading.Barrier(2)
    held: list[Any] = [None, None]

    def gather(value):
        held[ranks.rank] = value
        meet.wait()
        found = copy.deepcopy(held)
        meet.wait()
        return found

    def run(rank):
        ranks.rank = rank
        return job(rank)

    monkeypatch.setattr(ops, "global_gather", gather)
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, range(2)))


Row = dict[str, Any]
AVERAGE = {
    "reinforce": "sequence_mean_token_sum", "ppo": "token_mean", "grpo": "sequence_mean_token_mean",
    "dr_grpo": "constant", "gspo": "sequence_mean_token_mean", "cispo": "token_mean",
    "sequence": "sequence_mean_token_mean", "turn": "turn_mean",
}  # fmt: skip


def averaged(table: list[Row], losses: list[float], how: str) -> float:
    """One number of the losses of tokens."""
    count, total = len(table), 0.0
    of_sequences = len({row["sequence"] for row in table})
    of_turns = len({row["turn"] for row in table})
    agents = {row["agent"] for row in table}
    for row, loss in zip(table, losses, strict=True):
        own = sum(each["agent"] == row["agent"] for each in table)
        total += (
            loss
            * {
                "token_mean": 1 / count,
                "sequence_mean_token_mean": 1 / of_sequences / row["sequence size"],
                "sequence_mean_token_sum": 1 / of_sequences,
                "constant": 1 / of_sequences / 8,
                "turn_mean": 1 / of_turns / row["turn size"],
                "turn_mean_token_sum": 1 / of_turns,
                "sequence_mean_turn_mean": 1 / of_sequences / row["turns"] / row["turn size"],
                "agent_balanced": 1 / own / len(agents),
            }[how]
        )
    return total


def logit_gradient(policy: Policy, turns: list[Turn], algorithm: Any = None) -> torch.Tensor:
    """Norm of the loss's gradient at every logit position of the one sample the turns form:
    (T,)."""
    algorithm = algorithm or SFT()
    for turn in turns:
        turn.advantages = 1.0
    (sample,) = merge(turns)
    batch = pack([sample])
    batch.grid.keep = torch.arange(batch.grid.input_ids.shape[1])
    batch.grid.column = torch.cat(
        [
            torch.arange(s - 1, s - 1 + len(t))
            for s, t in zip(sample.starts, sample.turns, strict=True)
        ]
    )
    seen: list[torch.Tensor] = []

    def keep_gradient(module: Any, inputs: Any, output: torch.Tensor) -> None:
        output.retain_grad()
        seen.append(output)

    hook = policy.model.get_output_embeddings().register_forward_hook(keep_gradient)
    try:
        algorithm.loss(batch, policy.forward(batch)).backward()
    finally:
        hook.remove()
    assert seen[0].grad is not None
    return seen[0].grad[0].norm(dim=-1)


def trained_turn(prompt: list[int], completion: list[int], advantage: float = 1.0) -> Turn:
    logprobs = [-1.0] * len(completion)
    return Turn("agent", "policy", prompt, completion, logprobs, advantages=advantage)
