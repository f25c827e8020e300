"""Activations that the lean engine computed while it sampled, for the first training pass with the
same weights: it computes the same for every sampled token, so only its gradient is left to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from mrlm.learn.fast.llama_modules import Anatomy, linear_of
from mrlm.learn.fast.prefix_tree import PackedTokens, to_device

WIDE = 256
"""Width of a model from which its products take longer than storing and finding their results."""
LEAST = 16
"""Rows of a call from which on this holds."""
SPARE = 4 / 3
"""Places for each token: finished rows are computed for a while, and have places, too."""
NOWHERE = np.zeros(0, dtype=np.int64)
NAMES = (("qkv",), ("middle",), ("gate", "up"), ("after",))
"""Names of what follows from the linear maps of a block, group by group: their outputs, or the
residual stream that these are added to."""
Text = tuple[Sequence[int], Sequence[int]]
"""Ids of a prompt and of its completion."""


class Activations:
    """Activations of the tokens that one call of the engine reads after its prompts.

    Args:
        widths: numbers of a token in a layer, by name.
        layers: number of layers.
        tokens: most tokens that are read.
        rows: most rows of a step.
        dtype: type of all but sums.
    """

    def __init__(
        self, widths: dict[str, int], layers: int, tokens: int, rows: int, dtype: torch.dtype
    ) -> None:
        size = int(tokens * SPARE) + rows
        types = {name: torch.float32 if name == "sums" else dtype for name in widths}
        self.layers: list[dict[str, Tensor]] = [
            {name: torch.empty(size, width, dtype=types[name]) for name, width in widths.items()}
            for _ in range(layers)
        ]
        self.size: int = size
        self.start: int = 0
        self.stop: int = 0
        self.owners: list[np.ndarray] = []

    def step(self, owners: np.ndarray) -> bool:
        """Open places for a step whose rows (N,) belong to these completions; -1 is none. Returns
        whether there are any left."""
        self.start, self.stop = self.stop, self.stop + len(owners)
        self.owners.append(owners.copy())
        return self.stop <= self.size

    def put(self, layer: int, name: str, found: Tensor) -> None:
        """Store the activations (N, width) of the rows of this step."""
        self.layers[layer][name][self.start : self.stop] = found

    def places(self, count: int) -> list[np.ndarray]:
        """The places of the tokens of each of `count` completions, in order."""
        owners = np.concatenate([NOWHERE, *self.owners])
        order = np.argsort(owners, kind="stable")
        ends = np.searchsorted(owners[order], np.arange(count + 1))
        return [order[start:stop] for start, stop in pairwise(ends)]


class Kept:
    """The kept activations of a policy, and the version of its weights.

    Args:
        anatomy: the policy's modules.
        tokens: most tokens that are kept.
        dtype: type that training computes in.
    """

    def __init__(self, anatomy: Anatomy, tokens: int, dtype: torch.dtype = torch.float32) -> None:
        self.anatomy = anatomy
        self.dtype = dtype
        self.tokens: int = tokens
        self.digest: int = 0
        """Of the weights that sampled."""
        self.calls: list[Activations] = []
        self._places: dict[bytes, tuple[int, np.ndarray]] = {}
        self._used = 0
        self._confirmed = False

    @staticmethod
    def suits(anatomy: Anatomy) -> bool:
        """Whether activations of a model are kept."""
        linears = [linear_of(layer.gate, None) for layer in anatomy.layers]
        weights = {(each.weight.device.type, each.weight.dtype) for each in linears}
        plain = all(layer.norm_after_attention is None for layer in anatomy.layers)
        plain = plain and anatomy.attention_softcap is None and anatomy.hidden >= WIDE
        return plain and weights == {("cpu", torch.float32)}

    def clear(self) -> None:
        """Release all activations: the weights change."""
        self.calls, self._places, self._used = [], {}, 0
        self._confirmed = False

    def begin(self, tokens: int, rows: int) -> Activations | None:
        """Places for the tokens of a call, if it has enough rows, and no more tokens than may still
        be kept."""
        if rows < LEAST or not tokens or self._used + tokens > self.tokens:
            return None
        self._used += tokens
        anatomy, first = self.anatomy, self.anatomy.layers[0]
        own = anatomy.heads * anatomy.head_dim
        widths = {
            "qkv": own + 2 * anatomy.kv_heads * anatomy.head_dim,
            "mixed": own,
            "sums": anatomy.heads,
            "middle": anatomy.hidden,
            "gate": len(linear_of(first.gate, None).weight),
            "up": len(linear_of(first.up, None).weight),
            "after": anatomy.hidden,
        }
        return Activations(widths, len(anatomy.layers), tokens, rows, self.dtype)

    def add(self, call: Activations, texts: Sequence[Text]) -> None:
        """Keep the activations of a call with these completions."""
        number = len(self.calls)
        self.calls.append(call)
        found = call.places(len(texts))
        for (prompt, completion), places in zip(texts, found, strict=True):
            self._places[_name(prompt, completion)] = number, places[: len(completion)]

    def confirm(self, digest: Callable[[], int]) -> bool:
        """Tell the weights that the next passes have, as their digest. Returns whether they are
        those that sampled; if not, everything is released."""
        if self.calls and digest() != self.digest:
            self.clear()
        self._confirmed = bool(self.calls)
        return self._confirmed

    def known(
        self, texts: Sequence[Sequence[Text]], tokens: PackedTokens, last: bool
    ) -> Known | None:
        """Looks up packed tokens, with the confirmed weights.

        Args:
            texts: for each sample its completions, whose prompts extend one another.
            tokens: the samples.
            last: nothing is read after this pass, so that it releases what it has read.
        """
        if not self._confirmed:
            return None
        spans = [[self._span(text) for text in several] for several in texts]
        calls, places = (np.full(len(tokens.ids), -1) for _ in range(2))
        for chunk in tokens.chunks:
            shift = chunk.place - chunk.start
            for first, call, found in spans[chunk.sample]:
                start, stop = max(chunk.start, first), min(chunk.stop, first + len(found))
                if start < stop:
                    calls[start + shift : stop + shift] = call
                    places[start + shift : stop + shift] = found[start - first : stop - first]
        if (calls < 0).all():
            return None
        whole = [bool((calls[each.start : each.stop] >= 0).all()) for each in tokens.pieces]
        found = Known(self.calls, calls, places, whole, last)
        if last:
            self.clear()
        return found

    def _span(self, text: Text) -> tuple[int, int, np.ndarray]:
        """The first index of a completion, and the call and places of its tokens."""
        return len(text[0]), *self._places.get(_name(*text), (-1, NOWHERE))


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Packed tokens, in an order.

    Args:
        calls, places: (M,) where the activations of each are; -1 for nowhere.
        fresh: (F,) those that are nowhere, `None` if there are none.
    """

    calls: np.ndarray
    places: np.ndarray
    fresh: Tensor | None

    @classmethod
    def of(cls, calls: np.ndarray, places: np.ndarray) -> KeptRows:
        """From `calls` and `places`."""
        missing = np.flatnonzero(calls < 0)
        return cls(calls, places, to_device(missing, "cpu") if len(missing) else None)


@dataclass(eq=False)
class Known:
    """Activations of the packed tokens of a pass.

    Args:
        kept: all calls.
        calls, places: (P,) where the activations of each token are; -1 for nowhere.
        whole: for each piece of attention, whether those of all its tokens are known.
        last: they are released as they are read.
    """

    kept: Sequence[Activations]
    calls: np.ndarray
    places: np.ndarray
    whole: Sequence[bool]
    last: bool
    every: KeptRows = field(init=False)
    """All tokens."""

    def __post_init__(self) -> None:
        self.every = KeptRows.of(self.calls, self.places)

    def some(self, rows: Tensor) -> KeptRows:
        """The tokens (M,) with these packed indices."""
        chosen = rows.numpy()
        return KeptRows.of(self.calls[chosen], self.places[chosen])

    def take(self, layer: int, name: str, rows: KeptRows) -> Tensor:
        """Activations (M, width) of tokens; those of fresh ones are any numbers."""
        numbers = np.unique(rows.calls[rows.calls >= 0]).tolist()
        stored = [self.kept[number].layers[layer][name] for number in numbers]
        if len(stored) == 1:
            found = stored[0].index_select(0, torch.as_tensor(rows.places.clip(min=0)))
        else:
            found = stored[0].new_empty((len(rows.calls), stored[0].shape[1]))
            for number, each in zip(numbers, stored, strict=True):
                own = np.flatnonzero(rows.calls == number)
                part = each.index_select(0, torch.as_tensor(rows.places[own]))
                found.index_copy_(0, torch.as_tensor(own), part)
        if self.last:
            for call in self.kept:
                del call.layers[layer][name]
        return found


def _name(prompt: Sequence[int], completion: Sequence[int]) -> bytes:
    """A short name of a text."""
    ids = np.array([len(prompt), *prompt, *completion], dtype=np.int64)
    return blake2b(ids.tobytes(), digest_size=16).digest()
