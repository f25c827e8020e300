"""Batched generation over rollouts, for custom loops: each rollout gets the next message of its
policy, with the sampled tokens recorded in it."""

from collections.abc import Sequence
from typing import Any

from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.core.sampling import SamplingParams, takes_sampling
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Role, Rollout, Turn
from mrlm.learn.mismatch import content_version
from mrlm.learn.policy.policy import Policy, as_policy
from mrlm.play.agent import seed_of
from mrlm.play.engine import Request


class Generator:
    """Generates the next messages of rollouts.

    Args:
        model: a causal language model, a PEFT model or a `Policy`.
        tokenizer: its tokenizer.
        seed: of the random numbers of all calls, with the number of messages generated before.
        batch_size: rows decoded at once.
        **sampling: fields of `SamplingParams`; temperature 0 is greedy.
    """

    @takes_sampling
    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        seed: int = 0,
        batch_size: int = 256,
        **sampling: Any,
    ) -> None:
        policy = as_policy("policy", model, tokenizer)
        self.policy: Policy = policy
        self.sampling: SamplingParams = SamplingParams(**sampling)
        self.seed = seed
        self.generated: int = 0
        engine = registry.load("engines", "lean")
        self._engine = engine(policies={policy.name: policy}, batch_size=batch_size)

    def generate(self, rollout: Rollout) -> Message:
        """Append the next MODEL message to one rollout and return it."""
        return self.batch_generate([rollout])[0]

    def batch_generate(self, rollouts: Sequence[Rollout]) -> list[Message]:
        """Append the next MODEL message to each rollout, all in one batch. Raises `ConfigError`: a
        rollout has no message to answer, or does not fit the model."""
        prompts = []
        for index, rollout in enumerate(rollouts):
            if not rollout.messages:
                raise ConfigError(
                    f"rollout {index} has no message to answer; add one with add_messages"
                )
            prompts.append(self._prompt(rollout))
            if len(prompts[-1]) + self.sampling.max_new_tokens > self._engine.max_context:
                raise ConfigError(
                    f"rollout {index}: {len(prompts[-1])} prompt tokens and "
                    f"max_new_tokens={self.sampling.max_new_tokens} "
                    f"exceed the model's {self._engine.max_context} positions"
                )
        name, sampling = self.policy.name, self.sampling
        requests = [
            Request(name, prompt, sampling, seed_of((self.seed, number)))
            for number, prompt in enumerate(prompts, self.generated)
        ]
        self.generated += len(requests)
        version = content_version(self.policy)
        completions = run_async(self._engine.generate(requests))
        messages = []
        for rollout, request, completion in zip(rollouts, requests, completions, strict=True):
            turn = Turn(
                agent=rollout.agent or "agent",
                policy=self.policy.name,
                prompt_ids=request.prompt_ids,
                completion_ids=completion.token_ids,
                logprobs=completion.logprobs,
                index=len(rollout.turns),
                step=len(rollout.turns),
                version=version,
                finish_reason=completion.finish_reason,
                sampling=self.sampling,
            )
            turn.message = Message(completion.text, Role.ASSISTANT, agent=rollout.agent, turn=turn)
            rollout.turns.append(turn)
            rollout.add_messages(turn.message)
            messages.append(turn.message)
        return messages

    def _prompt(self, rollout: Rollout) -> list[int]:
        """Ids of the conversation so far; sampled messages keep their tokens."""
        chat = self.policy.chat
        spoken = [i for i, message in enumerate(rollout.messages) if message.turn is not None]
        if not spoken:
            return chat.prompt(rollout.messages).ids
        last = rollout.messages[spoken[-1]].turn
        assert last is not None
        before = chat.prompt(rollout.messages[: spoken[-1]])
        return chat.prompt(rollout.messages, after=(before, last)).ids


class ModelGenerate(Generator):
    """A `Generator` with the names of SimpleTorchLLMRL.

    Args:
        model, tokenizer: as of `Generator`.
        do_sample: `False` is greedy.
        pad_token_id: not used: batches have no padding.
        **sampling: further arguments of `Generator`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        do_sample: bool = True,
        pad_token_id: int | None = None,
        **sampling: Any,
    ) -> None:
        if not do_sample:
            sampling["temperature"] = 0.0
        super().__init__(model, tokenizer, **sampling)

    def rollout_generate_response(self, rollout: Rollout) -> Message:
        """Returns the next MODEL message of a rollout, to be added with `rollout.add_messages`; of
        those that were sampled before and not added, the rollout has no turn any more. Raises
        `ConfigError`: as of `Generator.batch_generate`."""
        present = {id(message.turn) for message in rollout.messages}
        rollout.turns[:] = [turn for turn in rollout.turns if id(turn) in present]
        message = self.generate(rollout)
        rollout.messages.pop()
        return message

    def batch_rollout_generate_response(self, rollouts: Sequence[Rollout]) -> list[Message]:
        """`Generator.batch_generate`: the messages are added."""
        return self.batch_generate(rollouts)
