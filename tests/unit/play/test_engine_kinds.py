"""An engine is compared with the protocols of engines once, not at every request."""

from __future__ import annotations

import asyncio
from typing import Any

from mrlm.core.types import SamplingParams
from mrlm.engines.scripted import ScriptedEngine
from mrlm.play.engine import Batcher, ExternalCalls, Request

MEMBERS = {"answer", "take_usage", "one"}
"""Names that only `RemoteEngine` and `ConcurrentEngine` have."""


class Looked(ScriptedEngine):
    """Counts how often it is asked for members of other kinds of engines."""

    looks = 0

    def __getattr__(self, name: str) -> Any:
        type(self).looks += name in MEMBERS
        raise AttributeError(name)


def test_an_engine_is_compared_with_protocols_once(tokenizer: Any) -> None:
    engines = {"policy": Looked(lambda request: "yes", tokenizer)}

    async def ask(batcher: Batcher, count: int) -> None:
        asked = (
            Request("policy", [1], SamplingParams(max_new_tokens=4), seed, (seed,))
            for seed in range(count)
        )
        await asyncio.gather(*map(batcher.generate, asked))

    batcher = Batcher(engines, 60.0, ExternalCalls())
    asyncio.run(ask(batcher, 1))
    once = Looked.looks
    assert once > 0
    asyncio.run(ask(batcher, 32))
    assert Looked.looks == once
    engines["policy"] = Looked(lambda request: "no", tokenizer)
    asyncio.run(ask(batcher, 32))
    assert Looked.looks == 2 * once, "another engine under the same name"
