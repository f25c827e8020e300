"""A trained reward model as a reward function: it scores conversations and samples nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mrlm.core.errors import ConfigError
from mrlm.core.transcripts import transcript_turns
from mrlm.core.types import Message, Role
from mrlm.learn.batch import Sample, merge, pack, split
from mrlm.learn.loading import load_model, load_tokenizer
from mrlm.learn.policy import HEADS, Policy
from mrlm.learn.preference import scored
from mrlm.play.tasks import row_messages


class RewardModel:
    """Scores answers with what the algorithm `reward_model` trained.

    It is a reward function of the batched form, `f(prompts, completions) -> scores`: prompts and
    completions are texts or lists of messages. The model is loaded when it is first used. As
    `reward_func=` of a trainer it is an object of this class; in a config file it is
    `reward_model: <folder>` of the environment `reward`.

    Args:
        path: the folder that was saved: a model (or an adapter) with its tokenizer and head.
        device: `auto` is the first CUDA device, else the CPU.
        dtype: type of the weights.
        max_tokens: tokens that go through the model at once.

    Raises:
        ConfigError: the folder is there and holds no reward model.
    """

    __name__ = "reward_model"

    def __init__(
        self,
        path: str | Path,
        device: str = "auto",
        dtype: str = "float32",
        max_tokens: int = 16384,
    ) -> None:
        self.path: str = str(path)
        self.device = device
        self.dtype = dtype
        self.max_tokens = max_tokens
        if Path(self.path).is_dir():
            self._require_head()

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float]:
        """One score per completion, in order; other columns are not read."""
        samples = [
            self._sample(index, prompt, completion)
            for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        ]
        policy, found = self._policy, [0.0] * len(samples)
        with policy.scoring():
            for micro in split(samples, self.max_tokens, packed=policy.packed):
                batch = pack(micro, pad_id=policy.pad_id, device=policy.device)
                values = policy.values(batch).float().tolist()
                for sample, value in zip(micro, values, strict=True):
                    found[sample.unit] = value
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> RewardModel:
        return self

    def _sample(self, index: int, prompt: Any, completion: Any) -> Sample:
        """The conversation, read to the end of its last answer."""
        said = [Message(completion, Role.ASSISTANT)] if isinstance(completion, str) else completion
        messages = [*row_messages(prompt, "prompt"), *row_messages(said, "completion")]
        policy = self._policy
        turns = transcript_turns(policy.chat, messages, "agent", policy.name)
        if not turns:
            raise ConfigError(f"reward model {self.path}: a completion holds no assistant message")
        turn = scored(turns)
        if len(turn.prompt_ids) > policy.max_context:
            raise ConfigError(
                f"reward model {self.path}: a conversation of {len(turn.prompt_ids)} tokens, and "
                f"it reads {policy.max_context} at most"
            )
        (sample,) = merge([turn], unit=index)
        return sample

    @cached_property
    def _policy(self) -> Policy:
        model = load_model(self.path, self.dtype, device=self.device)
        self._require_head()
        policy = Policy("reward_model", model.eval(), load_tokenizer(self.path))
        policy.load_heads(Path(self.path))
        return policy

    def _require_head(self) -> None:
        if not (Path(self.path) / HEADS).is_file():
            raise ConfigError(
                f"{self.path} holds no reward model: it has no {HEADS}; train one with the "
                "algorithm reward_model and give its folder final/"
            )


PLUGIN = RewardModel
