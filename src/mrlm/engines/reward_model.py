"""A trained reward model as a reward function: it scores conversations and does not sample."""

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from mrlm.core.chat import Chat
from mrlm.core.errors import ConfigError
from mrlm.core.transcripts import transcript_turns
from mrlm.core.types import Message, Role
from mrlm.data.tasks import joint_answer, row_messages
from mrlm.learn.bases.preference import scored
from mrlm.learn.data.batch import Sample, merge, pack
from mrlm.learn.data.samples import split
from mrlm.learn.policy.loading import load_model, load_tokenizer
from mrlm.learn.policy.policy import Policy
from mrlm.learn.policy.saved_model import HEADS


class RewardModel:
    """A reward function that scores answers with a model trained by the algorithm `reward_model`,
    or with any published reward model (a sequence classifier with one label).

    It has the batched form `f(prompts, completions) -> scores`: prompts and completions are texts
    or lists of messages. The model is loaded at its first use. Pass an instance as `reward_func=`
    of a trainer; in a config file it is `reward_model: <folder>` of the environment `reward`.

    Args:
        path: the saved folder: a model (or an adapter) with its tokenizer and head; or a folder
            whose `config.json` names a `...ForSequenceClassification`, which reads the whole
            conversation as rendered by its chat template, or, as BERT and DeBERTa without one, the
            tokenizer's pair of what was asked and the last answer.
        device: `auto` is the first CUDA device, else the CPU.
        dtype: type of the weights.
        max_tokens: tokens per forward pass.

    Raises:
        ConfigError: the folder exists and is not a reward model.
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
        """One score per completion, in order; other columns are ignored."""
        talks = [_talk(*pair) for pair in zip(prompts, completions, strict=True)]
        if _classifies(self.path):
            return self._classified(talks)
        samples = [self._sample(index, talk) for index, talk in enumerate(talks)]
        policy, scores = self._policy, [0.0] * len(samples)
        with policy.scoring():
            for micro in split(samples, self.max_tokens, packed=policy.packed):
                batch = pack(micro, pad_id=policy.pad_id, device=policy.device)
                values = policy.values(batch).float().tolist()
                for sample, value in zip(micro, values, strict=True):
                    scores[sample.unit] = value
        return scores

    def of_team(self, agents: Sequence[str]) -> Callable[..., list[float]]:
        """A reward function that scores the joint answer of a team as one text, as `reward_model`
        was trained on rows whose `chosen` and `rejected` map agents to texts.

        Args:
            agents: names of the team; their answers are concatenated in this order.
        """
        count = len(agents)

        def team_reward_model(
            prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
        ) -> list[float]:
            questions: list[list[Message]] = []
            answers: list[str] = []
            for start in range(0, len(prompts), count):
                part = slice(start, start + count)
                asked = [row_messages(prompt, "prompt") for prompt in prompts[part]]
                new = (row for i, row in enumerate(asked) if row not in asked[:i])
                questions.append([message for row in new for message in row])
                said = (row_messages(completion, "completion") for completion in completions[part])
                texts = ["\n".join(message.content for message in row) for row in said]
                answers.append(joint_answer(dict(zip(agents, texts, strict=True))))
            return [score for score in self(questions, answers) for _ in agents]

        return team_reward_model

    def __deepcopy__(self, memo: dict[int, Any]) -> "RewardModel":
        return self

    def _sample(self, index: int, messages: list[Message]) -> Sample:
        """The conversation, up to the end of its last answer."""
        policy = self._policy
        turns = transcript_turns(policy.chat, messages, "agent", policy.name)
        if not turns:
            raise ConfigError(f"reward model {self.path}: a completion has no assistant message")
        turn = scored(turns)
        self._require_room(turn.prompt_ids, policy.max_context)
        (sample,) = merge([turn], unit=index)
        return sample

    def _classified(self, talks: Sequence[list[Message]]) -> list[float]:
        """The scores of a sequence classifier for whole conversations, in small batches."""
        model, chat = self._classifier
        if chat is None:
            return self._paired(model, talks)
        rows = [chat.encode(chat.render(messages, generate=False)) for messages in talks]
        most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        for row in rows:
            self._require_room(row, most or len(row))
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        results = [0.0] * len(rows)
        while order:
            width = len(rows[order[-1]])
            count = max(1, self.max_tokens // width)
            chosen, order = order[-count:], order[:-count]
            # pad with a token that no row contains: a classifier locates its last token by the
            # padding id
            used = {token for index in chosen for token in rows[index]}
            filler = next(token for token in range(len(used) + 1) if token not in used)
            ids = [rows[index] + [filler] * (width - len(rows[index])) for index in chosen]
            read = [[1] * len(rows[i]) + [0] * (width - len(rows[i])) for i in chosen]
            model.config.get_text_config().pad_token_id = filler
            with torch.no_grad():
                inputs = (torch.tensor(part, device=model.device) for part in (ids, read))
                scores = model(*inputs).logits[:, 0].float().tolist()
            for index, score in zip(chosen, scores, strict=True):
                results[index] = score
        return results

    def _paired(self, model: Any, talks: Sequence[list[Message]]) -> list[float]:
        """The scores of a classifier that reads pairs: what was asked, and the last answer."""
        tokenizer, scores = load_tokenizer(self.path), list[float]()
        for talk in talks:
            question = "\n".join(message.content for message in talk[:-1])
            row = tokenizer(question, talk[-1].content, return_tensors="pt")
            most = getattr(model.config, "max_position_embeddings", tokenizer.model_max_length)
            self._require_room(row["input_ids"][0].tolist(), min(most, tokenizer.model_max_length))
            with torch.no_grad():
                scores.append(float(model(**row.to(model.device)).logits[0, 0]))
        return scores

    def _require_room(self, ids: Sequence[int], most: int) -> None:
        if len(ids) > most:
            raise ConfigError(
                f"reward model {self.path}: a conversation has {len(ids)} tokens; the model reads "
                f"{most} at most"
            )

    @cached_property
    def _classifier(self) -> tuple[Any, Chat | None]:
        model = load_model(self.path, self.dtype, device=self.device, scores=True).eval()
        if model.config.num_labels != 1:
            raise ConfigError(
                f"reward model {self.path}: a classifier of {model.config.num_labels} labels; "
                "a reward is one number, so it must have one"
            )
        tokenizer = load_tokenizer(self.path)
        pairs = not tokenizer.chat_template and tokenizer.cls_token_id is not None
        return model, None if pairs else Chat(tokenizer)

    @cached_property
    def _policy(self) -> Policy:
        model = load_model(self.path, self.dtype, device=self.device)
        self._require_head()
        policy = Policy("reward_model", model.eval(), load_tokenizer(self.path))
        policy.load_heads(Path(self.path))
        return policy

    def _require_head(self) -> None:
        if not _classifies(self.path) and not (Path(self.path) / HEADS).is_file():
            raise ConfigError(
                f"{self.path} is not a reward model: file {HEADS} does not exist; train one "
                "with the algorithm reward_model and give its folder final/"
            )


def _talk(prompt: Any, completion: Any) -> list[Message]:
    answer = [Message(completion, Role.ASSISTANT)] if isinstance(completion, str) else completion
    return [*row_messages(prompt, "prompt"), *row_messages(answer, "completion")]


def _classifies(path: str) -> bool:
    config = Path(path) / "config.json"
    if not config.is_file():
        return False
    names = json.loads(config.read_text(encoding="utf-8")).get("architectures") or []
    return any(name.endswith("ForSequenceClassification") for name in names)


PLUGIN = RewardModel
