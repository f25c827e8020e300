"""Prefill of several prompts at once: beginnings that they share are computed once, and after the
last attention only their last tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mrlm.engines.lean.attention import hidden
from mrlm.engines.lean.decoder import Attend, Decoder, columns_of
from mrlm.learn.fast.prefix_tree import to_device
from mrlm.learn.fast.varlen_attention import KeyPaths

Look = Callable[["Queries", Tensor], Tensor]
"""Attention of the queries (N, heads, D) of some tokens to the stored prompts."""


class Stored(NamedTuple):
    """Keys and values of tokens, as those of other tokens are stored: for each place in the blocks,
    the prompt, the column, and the computed token (`None` if they are in order)."""

    prompt: Tensor
    column: Tensor
    token: Tensor | None


@dataclass(frozen=True, eq=False, slots=True)
class Queries:
    """Tokens that ask in one product, at most `tall` of each prompt.

    Args:
        prompts: numbers of the P prompts; `None` for all.
        tokens: (N,) which of the tokens they are; `None` for all.
        slot: (N,) their places in the grid (P * tall); `None` if it has no others.
        tall: most tokens of a prompt.
        first: (P,) position of the first of each prompt.
    """

    prompts: Tensor | None
    tokens: Tensor | None
    slot: Tensor | None
    tall: int
    first: Tensor

    def grid(self, queries: Tensor) -> Tensor:
        """Queries (N, heads, D) by prompt, (P, heads, tall, D)."""
        grid = queries
        if self.slot is not None:
            grid = queries.new_zeros(len(self.first) * self.tall, *queries.shape[1:])
            grid[self.slot] = queries
        return grid.view(-1, self.tall, *queries.shape[1:]).transpose(1, 2)

    def flat(self, outputs: Tensor) -> Tensor:
        """Outputs (P, heads, tall, D) of the tokens (N, heads * D)."""
        flat = outputs.transpose(1, 2).reshape(len(self.first) * self.tall, -1)
        return flat if self.slot is None else flat[self.slot]


class Prefill:
    """The tokens of P prompts that are computed, of which each prompt's own ones continue the
    cached tokens or the beginning of the prompt before it.

    Args:
        decoder: computes them.
        texts: the ids of each prompt; those that share a beginning are neighbours.
        kinds: (P,) prompts of different kinds share nothing.
        cached: (P,) number of cached tokens.
        stops: (P,) where to stop.
    """

    def __init__(
        self,
        decoder: Decoder,
        texts: Sequence[np.ndarray],
        kinds: np.ndarray,
        cached: np.ndarray,
        stops: np.ndarray,
    ) -> None:
        self.decoder = decoder
        self.count, self.longest = len(texts), max(map(len, texts))
        self.wide: int = columns_of(decoder, self.longest)
        self.cached, self.stops = cached, stops
        table = np.full((self.count, self.wide), -1)
        columns = np.arange(self.wide)
        table[columns < np.array([len(text) for text in texts])[:, None]] = np.concatenate(texts)
        self.starts: np.ndarray = np.maximum(cached, np.minimum(_alike(table, kinds), stops - 1))
        self.new: np.ndarray = stops - self.starts
        """Number of each prompt's computed tokens."""
        computed = (columns >= self.starts[:, None]) & (columns < stops[:, None])
        self.columns: Tensor = self.decoder.index(computed.nonzero()[1])
        self.ids: Tensor = self.decoder.index(table[computed])
        offsets = np.cumsum(self.new) - self.new
        self.stored: Stored = self._stored(computed, offsets)
        self.groups: list[Queries] = self._groups(offsets)
        self.last: Tensor = self.decoder.index(offsets + self.new - 1)
        self.ends: Queries = Queries(None, self.last, None, 1, self.decoder.index(stops - 1))

    def forward(self, attend: Attend, owners: np.ndarray | None) -> Tensor:
        """Hidden states (P, hidden) of the last tokens; `attend` answers for them alone in the last
        layer, and `owners` is the result of `Decoder.owners` for the prompts."""
        decoder = self.decoder
        token_owners = None if owners is None else np.repeat(owners, self.new)
        last = self.last, decoder.adapted(owners)
        x = decoder.embed(self.ids)
        adapted = decoder.adapted(token_owners)
        return decoder.forward(x, self.columns, self.longest, attend, adapted, last)

    def asked(self, at: int, queries: Tensor, look: Look) -> Tensor:
        """Outputs (N, heads * D) in a layer."""
        groups = [self.ends] if at == len(self.decoder.windows) - 1 else self.groups
        parts = (queries if group.tokens is None else queries[group.tokens] for group in groups)
        return self.joined([(g, look(g, part)) for g, part in zip(groups, parts, strict=True)])

    def joined(self, parts: Sequence[tuple[Queries, Tensor]]) -> Tensor:
        """Numbers (N, width) of all groups' tokens, in order, from those of each group."""
        if len(parts) == 1:
            return parts[0][1]
        outputs = parts[0][1].new_empty(len(self.ids), parts[0][1].shape[1])
        for group, part in parts:
            outputs[group.tokens] = part
        return outputs

    def mask(self, group: Queries, window: int | None) -> Tensor | None:
        """The mask (P, 1, tall, wide) of a group, added to its scores; `None` if a causal mask is
        enough."""
        if window is None or window >= self.longest:
            window = None
            if group.tall == self.longest and not self.starts.any():
                return None
        device = self.decoder.device
        positions = group.first[:, None] + torch.arange(group.tall, device=device)
        behind = positions[:, :, None] - torch.arange(self.wide, device=device)
        gone = behind < 0 if window is None else (behind < 0) | (behind >= window)
        return hidden(gone, self.decoder.dtype)[:, None]

    def paths(self, last: bool) -> KeyPaths:
        """The keys of all queries, or of the `last` tokens': the prompts up to the last of them."""
        sizes = np.ones_like(self.new) if last else self.new

        def ends(sizes: np.ndarray) -> Tensor:
            bounds = np.concatenate([[0], np.cumsum(sizes)])
            return to_device(bounds.astype(np.int32), self.decoder.device)

        longest = int(sizes.max()), int(self.stops.max())
        return KeyPaths(None, ends(sizes), ends(self.stops), longest)

    def places(self, stops: np.ndarray) -> tuple[Tensor, Tensor]:
        """Prompt and column of the first so many tokens of the prompts."""
        prompt, column = (np.arange(self.wide) < stops[:, None]).nonzero()
        return self.decoder.index(prompt), self.decoder.index(column)

    def _stored(self, computed: np.ndarray, offsets: np.ndarray) -> Stored:
        columns = np.arange(self.wide)
        seen = (columns >= self.cached[:, None]) & (columns < self.stops[:, None])
        prompt, column = (self.decoder.index(numbers) for numbers in seen.nonzero())
        if np.array_equal(seen, computed):
            return Stored(prompt, column, None)
        number = np.arange(self.count)[:, None]
        begun = columns >= self.starts[:, None]
        owner = np.maximum.accumulate(np.where(begun, number, 0))[seen]
        token = offsets[owner] + seen.nonzero()[1] - self.starts[owner]
        return Stored(prompt, column, self.decoder.index(token))

    def _groups(self, offsets: np.ndarray) -> list[Queries]:
        """All tokens; prompts with more than twice as many as others ask apart."""
        tallest = int(self.new.max())
        halved = np.floor(np.log2(tallest / self.new)).astype(np.int64)
        kinds = np.unique(halved)
        if len(kinds) == 1:
            every = np.arange(tallest) < self.new[:, None]
            slot = None if every.all() else self.decoder.index(np.flatnonzero(every))
            return [Queries(None, None, slot, tallest, self.decoder.index(self.starts))]
        groups: list[Queries] = []
        for kind in kinds:
            chosen = np.flatnonzero(halved == kind)
            tall = int(self.new[chosen].max())
            real = np.arange(tall) < self.new[chosen, None]
            tokens = (offsets[chosen, None] + np.arange(tall))[real]
            slot = None if real.all() else self.decoder.index(np.flatnonzero(real))
            first = self.decoder.index(self.starts[chosen])
            groups.append(
                Queries(self.decoder.index(chosen), self.decoder.index(tokens), slot, tall, first)
            )
        return groups


def _alike(table: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """Number of tokens (P,) at the beginning of each text of a table (P, wide) that the text before
    it has as well, if it is of the same kind."""
    shared = np.zeros(len(table), dtype=np.int64)
    same = np.ones((len(table) - 1, table.shape[1] + 1), dtype=bool)
    same[:, :-1] = table[1:] == table[:-1]
    same[:, -1] = False
    shared[1:] = np.where(kinds[1:] == kinds[:-1], same.argmin(1), 0)
    return shared
