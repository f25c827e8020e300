"""Activations that the lean engine computed while it read prompts and sampled, for the first
training pass with the same weights: it computes the same for these tokens, so only its gradient is
left to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from mrlm.learn.fast.llama_modules import Anatomy, linear_of
from mrlm.learn.fast.prefix_tree import EMPTY, PrefixTree, to_device

WIDE = 256
"""Width of a model from which its products take longer than storing and finding their results."""
LEAST = 16
"""Rows of a call from which on this holds."""
SPARE = 4 / 3
"""Places for each token: finished rows are computed for a while, and have places, too."""
NOWHERE = np.zeros(0, dtype=np.int64)
STRIDE = 1 << 32
"""Larger than any number of tokens of a call."""
NAMES = ("qkv", "middle", "gate_up", "after")
"""Names of what follows from the linear maps of a block, group by group: their outputs side by
side, or the residual stream that these are added to."""
Text = tuple[Sequence[int], Sequence[int]]
"""Ids of a prompt and of its completion; no ids of the latter for the prompt itself."""


class Activations:
    """Activations of tokens by layer and name, as one call of the engine computes them."""

    layers: list[dict[str, Tensor]]
    ends: np.ndarray | None = None
    """The row of each token in the last layer from its attention on, -1 for none; `None` if it is
    that of before."""

    def put(self, layer: int, name: str, found: Tensor) -> None:
        """Store activations (N, width)."""
        raise NotImplementedError


class PromptActivations(Activations):
    """Activations of the computed tokens of prompts, which are not copied where nothing changes
    them.

    Args:
        layers: number of layers.
        dtype: type of all but sums.
    """

    def __init__(self, layers: int, dtype: torch.dtype) -> None:
        self.layers = [{} for _ in range(layers)]
        self.dtype = dtype

    def put(self, layer: int, name: str, found: Tensor) -> None:
        if name == "qkv":  # norms and rotary embeddings are computed in place
            found = found.clone()
        self.layers[layer][name] = found if name == "sums" else found.to(self.dtype)


class StepActivations(Activations):
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
        self.rows: list[np.ndarray] = []

    def step(self, owners: np.ndarray, rows: np.ndarray, count: int) -> bool:
        """Open places for a step that computes `count` rows: those of the completions `owners`
        (N,), -1 for none, are `rows` (N,) of them. Returns whether there are as many left."""
        self.start, self.stop = self.stop, self.stop + count
        self.owners.append(owners.copy())
        self.rows.append(self.start + rows)
        return self.stop <= self.size

    def put(self, layer: int, name: str, found: Tensor) -> None:
        self.layers[layer][name][self.start : self.stop] = found

    def places(self, count: int) -> list[np.ndarray]:
        """The places of the tokens of each of `count` completions, in order."""
        owners = np.concatenate([NOWHERE, *self.owners])
        order = np.argsort(owners, kind="stable")
        ends = np.searchsorted(owners[order], np.arange(count + 1))
        places = np.concatenate([NOWHERE, *self.rows])[order]
        return [places[start:stop] for start, stop in pairwise(ends.tolist())]


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
        self.holds: Callable[[], bool] = bool
        """Whether the weights that sampled are those of the policy as they are now."""
        self.calls: list[Activations] = []
        self._places: dict[tuple[tuple[int, ...], ...], tuple[np.ndarray, bool]] = {}
        """For each token of a text the number of its call, times `STRIDE`, and the place in it, or
        -1; and whether all have a place."""
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

    def begin(self, tokens: int, rows: int) -> StepActivations | None:
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
            "gate_up": sum(len(linear_of(x, None).weight) for x in (first.gate, first.up)),
            "after": anatomy.hidden,
        }
        return StepActivations(widths, len(anatomy.layers), tokens, rows, self.dtype)

    def begin_prompts(self, tokens: int) -> PromptActivations | None:
        """Places for so many computed tokens of prompts, if as many may still be kept."""
        if self._used + tokens > self.tokens:
            return None
        self._used += tokens
        return PromptActivations(len(self.anatomy.layers), self.dtype)

    def add(self, call: Activations, texts: Iterable[Text], places: Iterable[np.ndarray]) -> None:
        """Keep the activations of a call with these completions, or prompts; `places` of each are
        those of its tokens from the first one on, -1 for none."""
        first = len(self.calls) * STRIDE
        self.calls.append(call)
        for text, found in zip(texts, places, strict=True):
            whole = not len(found) or int(found.min()) >= 0
            where = found + first if whole else np.where(found >= 0, found + first, -1)
            self._places[_name(*text)] = where, whole

    def confirm(self) -> bool:
        """Say that the next passes have the weights of now. Returns whether they are those that
        sampled; if not, everything is released."""
        if self.calls and not self.holds():
            self.clear()
        self._confirmed = bool(self.calls)
        return self._confirmed

    def known(
        self, texts: Callable[[int], Iterable[Text]], tokens: PrefixTree, count: int, last: bool
    ) -> Known | None:
        """Looks up packed tokens, with the confirmed weights.

        Args:
            texts: for the number of a sample its prompts and completions, each of which extends
                those before it.
            tokens: the samples.
            count: number of rows, of which those after the tokens may have any activations.
            last: nothing is read after this pass, so that it releases what it has read.
        """
        if not self._confirmed:
            return None
        where = np.full(count, -1)
        spans: dict[int, list[tuple[int, np.ndarray, bool]]] = {}
        for chunk in tokens.chunks:
            if chunk.sample not in spans:
                spans[chunk.sample] = [*self._spans(texts(chunk.sample))]
            shift = chunk.place - chunk.start
            for first, found, whole in spans[chunk.sample]:
                start, stop = max(chunk.start, first), min(chunk.stop, first + len(found))
                if start < stop:
                    own, part = where[start + shift : stop + shift], found[start - first :]
                    part = part[: stop - start]
                    own[:] = part if whole else np.where(part < 0, own, part)
        if (where < 0).all():
            return None
        where[len(tokens.ids) :] = where.max()
        calls, places = np.divmod(where, STRIDE)
        found = Known(self.calls, calls, places, tokens, last)
        if last:
            self.clear()
        return found

    def _spans(self, texts: Iterable[Text]) -> Iterator[tuple[int, np.ndarray, bool]]:
        """The first index of a prompt or completion, and where its tokens are."""
        for prompt, completion in texts:
            name = _name(prompt, completion)
            if name in self._places:
                yield len(prompt) if completion else 0, *self._places[name]


@dataclass(frozen=True, slots=True)
class KeptRows:
    """M packed tokens, in an order.

    Args:
        count: their number.
        parts: calls, the tokens (m,) whose activations they have, and where; the first one has most
            of them, and a place (M,) for every token.
        fresh: (F,) tokens whose activations are nowhere, `None` if there are none.
    """

    count: int
    parts: Sequence[tuple[int, Tensor | None, Tensor]]
    fresh: Tensor | None

    @classmethod
    def of(cls, calls: np.ndarray, places: np.ndarray) -> KeptRows:
        """From the call and the place of each, -1 for nowhere."""
        counts = np.bincount(calls[calls >= 0])
        parts: list[tuple[int, Tensor | None, Tensor]] = []
        for number in np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].tolist():
            if not parts:
                where = np.where(calls == number, places, 0)
                parts.append((number, None, to_device(where, "cpu")))
                continue
            own = np.flatnonzero(calls == number)
            parts.append((number, to_device(own, "cpu"), to_device(places[own], "cpu")))
        missing = np.flatnonzero(calls < 0)
        return cls(len(calls), parts, to_device(missing, "cpu") if len(missing) else None)


@dataclass(eq=False)
class Known:
    """Activations of the packed tokens of a pass.

    Args:
        kept: all calls.
        calls, places: (M,) where the activations of each token are; -1 for nowhere.
        tokens: the tokens.
        last: activations are released as they are read.
    """

    kept: Sequence[Activations]
    calls: np.ndarray
    places: np.ndarray
    tokens: PrefixTree
    last: bool
    every: KeptRows = field(init=False)
    """All tokens."""
    whole: list[bool] = field(init=False)
    """For each piece of attention, whether the outputs of all its tokens are known."""

    def __post_init__(self) -> None:
        self.every = KeptRows.of(self.calls, self.places)
        self.whole = self._pieces(self.calls >= 0)
        ends = self.places.copy()
        for number, call in enumerate(self.kept):
            if call.ends is not None:
                own = self.calls == number
                ends[own] = call.ends[self.places[own]]
        self._ends: np.ndarray = ends

    def deep(self) -> tuple[KeptRows, list[bool]]:
        """In the last layer: all tokens, and the pieces of which all outputs that are read are
        known; those that are not have no gradient."""
        reached = np.where(self._ends >= 0, self.calls, -1)
        missing = reached < 0
        read = np.zeros(len(reached), dtype=bool)
        read[self.tokens.needed.numpy()] = True
        return KeptRows.of(reached, self._ends), self._pieces(~(missing & read))

    def some(self, rows: Tensor) -> KeptRows:
        """The tokens (M,) with these packed indices, in the last layer."""
        chosen = rows.numpy()
        ends = self._ends[chosen]
        return KeptRows.of(np.where(ends >= 0, self.calls[chosen], -1), ends)

    def _pieces(self, known: np.ndarray) -> list[bool]:
        return [bool(known[each.start : each.stop].all()) for each in self.tokens.pieces]

    def take(self, layer: int, name: str, rows: KeptRows) -> Tensor:
        """Activations (M, width) of tokens; those of fresh ones are any numbers, and sums so large
        that nothing is left of their scores."""
        stored = [self.kept[number].layers[layer][name] for number, _, _ in rows.parts]
        if not stored:
            (any_of, *_) = (call.layers[layer][name] for call in self.kept)
            found = any_of.new_zeros(rows.count, any_of.shape[1])
        else:
            found = stored[0].index_select(0, rows.parts[0][2])
        for each, (_, own, places) in zip(stored[1:], rows.parts[1:], strict=True):
            assert own is not None
            found.index_copy_(0, own, each.index_select(0, places))
        if name == "sums" and rows.fresh is not None:
            found.index_fill_(0, rows.fresh, EMPTY)
        if self.last:
            for call in self.kept:
                call.layers[layer].pop(name, None)
        return found


def _name(prompt: Sequence[int], completion: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    return tuple(prompt), tuple(completion)
