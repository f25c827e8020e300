"""How likely a policy is to give each of some answers, computed rather than sampled."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mrlm.core.types import Message, SamplingParams, Turn
from mrlm.learn.data.batch import Sample, pack
from mrlm.learn.policy.policy import Policy


def answer_logprobs(
    policy: Policy,
    messages: Sequence[Message],
    answers: Sequence[str],
    temperature: float = 1.0,
    ended: bool = True,
) -> list[float]:
    """The log-probability of each answer to a conversation: what sampling without `top_p` or
    `top_k` gives in the long run.

    Args:
        policy: who answers.
        messages: what it reads; its own earlier answers among them.
        answers: texts.
        temperature: of the sampling.
        ended: whether the token that ends an answer counts too; without it, what the answer begins
            with may go on in any way, as where `max_new_tokens` cuts it.
    """
    chat = policy.chat
    read = chat.prompt(list(messages)).ids
    samples: list[Sample] = []
    for number, text in enumerate(answers):
        said = [*chat.encode_text(text), *([chat.tokenizer.eos_token_id] if ended else [])]
        drawn = SamplingParams(temperature=temperature)
        turn = Turn(policy.name, policy.name, read, said, sampling=drawn)
        samples.append(Sample([*read, *said], [turn], [len(read)], number, number))
    batch = pack(samples, pad_id=policy.pad_id, device=policy.device)
    with policy.scoring():
        logprobs = policy.forward(batch).logprobs.double()
    sums = torch.zeros(len(answers), dtype=torch.float64, device=logprobs.device)
    return sums.index_add(0, batch.sequence, logprobs).tolist()
