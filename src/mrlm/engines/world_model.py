"""A language model that writes an agent's next observation: the user turn after the agent's action,
as trained by `SFT` in mode `world_model`."""

import asyncio
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mrlm.core import registry
from mrlm.core.chat import Chat, Prompt
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Role, SamplingParams, Turn
from mrlm.core.user_turn import UserTurnOpening, open_user_turn
from mrlm.learn.policy.loading import load_model, load_tokenizer
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Batcher, ExternalCalls, Request


@dataclass(slots=True)
class WorldModelDialogue:
    """The conversation of an agent with a world model, and the agent's last prompt and turn."""

    messages: list[Message] = field(default_factory=list)
    last: tuple[Prompt, Turn] | None = None


@dataclass(eq=False, repr=False)
class WorldModel:
    """Samples observations. The model is loaded at its first use; copies of an environment share
    it, and concurrent requests are sampled in one batch.

    Args:
        model: a live causal language model, or a folder, run folder or hub id of one.
        tokenizer: its tokenizer; that of the folder if `None`.
        sampling: sampling parameters of observations.
        dtype, device: type and device of a model that is loaded.
        timeout: seconds a batch may take.
    """

    model: Any
    tokenizer: Any = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    dtype: str = "float32"
    device: str = "auto"
    timeout: float = 600.0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._batchers: weakref.WeakKeyDictionary[Any, Batcher] = weakref.WeakKeyDictionary()

    def __deepcopy__(self, memo: dict[int, Any]) -> "WorldModel":
        return self

    async def load(self) -> None:
        """Load the model without blocking the event loop."""
        await asyncio.to_thread(lambda: self._engine)

    @property
    def chat(self) -> Chat:
        return self._policy.chat

    def talk(self, messages: Sequence[Message]) -> WorldModelDialogue:
        """Start a conversation with messages."""
        return WorldModelDialogue(list(messages))

    def answer(self, talk: WorldModelDialogue, action: Message) -> None:
        """Append the agent's action: its sampled tokens if they are this model's ids of the text,
        else the ids of the text."""
        chat = self.chat
        text = action.content.encode("utf-8", "replace").decode()  # a lone surrogate has no tokens
        prompt, sampled = chat.prompt(talk.messages, talk.last), action.turn
        if sampled is None or not self._own(sampled, text):
            ids = chat.encode_text(text, whole=True)
            turn = Turn("agent", "world_model", prompt.ids, ids)
        else:
            turn = replace(sampled, prompt_ids=prompt.ids)
        turn.message = Message(text, Role.ASSISTANT, turn=turn)
        talk.messages.append(turn.message)
        talk.last = (prompt, turn)

    def opening(self, talk: WorldModelDialogue) -> UserTurnOpening:
        """The prompt of the model, and the end of its observation."""
        return open_user_turn(self.chat, talk.messages, talk.last)

    async def observe(
        self, talk: WorldModelDialogue, seed: int, key: tuple[int | str, ...] = ()
    ) -> Message | None:
        """Sample the next observation and append it to the conversation; `None` if the context has
        no room for one. `key` is the position of the request in a batch."""
        opening, sampling = self.opening(talk), self.sampling
        room = self._policy.max_context - len(opening.ids)
        if room < 1:
            return None
        stops = (*sampling.stop, *filter(None, [opening.stop]))
        most = min(room, sampling.max_new_tokens)
        drawn = replace(sampling, stop=stops, max_new_tokens=most)
        if opening.end is not None:
            self._policy.other_ends |= {opening.end}
        request = Request("world_model", opening.ids, drawn, seed, key)
        completion = await self._batcher().generate(request)
        observed = Message(opening.text(completion.text))
        talk.messages.append(observed)
        return observed

    def _own(self, turn: Turn, text: str) -> bool:
        """Whether sampled ids are this tokenizer's ids of a text."""
        ids, size = turn.completion_ids, len(self.chat.tokenizer)
        known = bool(ids) and all(0 <= token < size for token in ids)
        return known and self.chat.decode(ids) == text

    def _batcher(self) -> Batcher:
        loop = asyncio.get_running_loop()
        if loop not in self._batchers:
            engines = {"world_model": self._engine}
            self._batchers[loop] = Batcher(engines, self.timeout, ExternalCalls())
        return self._batchers[loop]

    @property
    def _policy(self) -> Policy:
        return self._engine.policies["world_model"]

    @property
    def _engine(self) -> Any:
        with self._lock:
            return self._loaded

    @cached_property
    def _loaded(self) -> Any:
        model, tokenizer = self.model, self.tokenizer
        named = isinstance(model, str)
        if named and model.startswith(("policy:", "stage:")):
            raise ConfigError(
                f"environment world_model: model={model!r} is the name of a policy or stage, "
                "which only its run can resolve; give the folder of the model"
            )
        if named:
            tokenizer = tokenizer or load_tokenizer(model)
            model = load_model(model, self.dtype, device=self.device).eval()
        tokenizer = tokenizer or load_tokenizer(getattr(model, "name_or_path", ""))
        policy = Policy("world_model", model, tokenizer)
        # a live model may be trained by its owner
        return registry.load("engines", "lean")({policy.name: policy}, unseen_writes=not named)


PLUGIN = WorldModel
