"""Places of a batch: how many rows and prompts fit into the memory for keys and values."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mrlm.core.errors import EngineError
from mrlm.engines.lean.decoder import Decoder, columns_of
from mrlm.engines.lean.kv_blocks import most_columns
from mrlm.engines.lean.prefix_cache import AT_ONCE
from mrlm.play.engine import Request


def key_of(request: Request) -> tuple[Any, ...]:
    """Requests share cached prefixes only with an equal key: the policy, and the start of the
    request key (seed and split). A resumed run does not repeat earlier evaluations, so their cache
    entries must not serve training: the last bits would differ."""
    return (request.policy, *request.key[:2])


class Places:
    """The memory of a batch.

    Args:
        decoder: computes keys and values.
        width: most new tokens of a row.
        budget: bytes.
    """

    def __init__(self, decoder: Decoder, width: int, budget: int) -> None:
        self.decoder: Decoder = decoder
        self.device: torch.device = decoder.device
        self.width: int = width
        self.budget: int = budget
        self.layers: int = len(decoder.windows)
        pairs = 2 * decoder.kv_heads * decoder.head_dim
        self.of_token: int = self.layers * pairs * decoder.dtype.itemsize
        """Bytes of a token."""

    def needed(self, rows: int, prompts: int, longest: int) -> int:
        """Most bytes of so many rows and prompts, with a layer that is copied as it grows."""
        written = rows * most_columns(self.width)
        read = prompts * columns_of(self.decoder, longest)
        tokens = written + read + max(written, read) // self.layers + AT_ONCE
        return tokens * self.of_token

    def fitting(self, requests: Sequence[Request]) -> int:
        """The number of requests for which there is memory, in their order. Raises `EngineError`:
        there is not enough for one."""
        longest = max(len(request.prompt_ids) for request in requests)
        if self.needed(len(requests), len(requests), longest) <= self.budget:
            return len(requests)
        seen: set[tuple[Any, ...]] = set()
        for rows, request in enumerate(requests):
            seen.add((key_of(request), tuple(request.prompt_ids)))
            needed = self.needed(rows + 1, len(seen), len(request.prompt_ids))
            if needed > self.budget and rows:
                return rows
            if needed > self.budget:
                raise EngineError(
                    f"the keys and values of one request ({len(request.prompt_ids)} tokens and "
                    f"{self.width} new ones) take {needed / 2**20:.0f} MiB on {self.device}, and "
                    f"{self.budget / 2**20:.0f} MiB are available; lower "
                    "generation.max_new_tokens, or raise engine.kv_mib"
                )
        return len(requests)

    def admitted(
        self, requests: Sequence[Request], rows: int, prompts: dict[Any, int], blocks: int
    ) -> int:
        """The number of requests for whose prompts there is memory beside other prompts.

        Args:
            requests: those that wait, in order.
            rows: of the batch, whose memory is reserved.
            prompts: text -> length of the prompts in the batch.
            blocks: number of prompts for which there is room now.
        """
        longest = max([*prompts.values(), *(len(request.prompt_ids) for request in requests)])
        every = max(len(prompts) + len(requests), blocks)
        if self.needed(rows, every, longest) <= self.budget:
            return len(requests)
        for number, request in enumerate(requests):
            ids = np.array(request.prompt_ids, dtype=np.int64)
            prompts[key_of(request), ids.tobytes()] = len(ids)
            count = max(len(prompts), blocks)
            if self.needed(rows, count, max(prompts.values())) > self.budget:
                return number
        return len(requests)
