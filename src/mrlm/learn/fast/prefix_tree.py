"""Samples -> a packed tree of tokens, in which every shared prefix is stored once.

Siblings share their prompt, forked conversations their history. Tokens are packed without padding;
attention is split into a few dense pieces (`PrefixPiece`), each a batch of chunks of similar length
with the keys visible to them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mrlm.core.prefixes import shared_prefix
from mrlm.learn.fast.double import double_dtype
from mrlm.learn.fast.varlen_attention import KeyPaths

WASTE = 1.25
"""Largest ratio of an attention piece to its content, through padding."""
SPARE = 1 << 12
"""Scores of padding in a piece that cost less than another piece."""
PINNED = {"cuda"}
"""Devices that copy only from page-locked memory while they compute."""


@dataclass(frozen=True, slots=True)
class PrefixPiece:
    """Attention of B chunks of at most S tokens to at most K keys each.

    Args:
        start, stop: range of the packed query tokens, chunk by chunk.
        rows: (B, S) packed indices of the queries, or `None` if all chunks have length S.
        inside: (stop - start,) index of each query token in the flat (B * S), or `None`.
        keys: (B, K) packed indices of the keys; `None` if they are the queries themselves.
        lengths: (B, 2) number of tokens before each chunk, and in it, on the device.
        shape: (B, S, K).
    """

    start: int
    stop: int
    rows: Tensor | None
    inside: Tensor | None
    keys: Tensor | None
    lengths: Tensor
    shape: tuple[int, int, int]

    def take(self, x: Tensor) -> Tensor:
        """The rows (B, S, ...) of its queries from those of all packed tokens (P, ...)."""
        if self.rows is None:
            return x[self.start : self.stop].unflatten(0, (self.shape[0], -1))
        return F.embedding(self.rows, x)

    def visible(self, window: int | None, start: int = 0, stop: int | None = None) -> Tensor:
        """Mask (B, 1, S, K): queries see the keys up to their own, at most `window` of them; with a
        range, for those queries alone."""
        _, asking, key_count = self.shape
        stop = asking if stop is None else stop
        device = self.lengths.device
        before = self.lengths[:, 0, None, None]
        query = before + torch.arange(start, stop, device=device)[None, :, None]
        key = torch.arange(key_count, device=device)[None, None, :]
        seen = key <= query
        if window is not None:
            padding = query >= self.lengths.sum(1)[:, None, None]
            # padding queries see a key, so that no row is empty
            seen = seen & (key > query - window) | padding & (key == 0)
        return seen[:, None]

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """The same, as what is added to scores."""
        seen = self.visible(window)
        zero, hidden = torch.tensor([0, -torch.inf], dtype=dtype, device=seen.device)
        return torch.where(seen, zero, hidden)


@dataclass(slots=True)
class _TokenChunk:
    """Tokens `start:stop` of a sample that no earlier sample shares."""

    sample: int
    start: int
    stop: int
    parent: int
    place: int = -1

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class PackedTokens:
    """The distinct tokens of some samples.

    Args:
        ids, positions: (P,) packed ids, and their positions in the sequences.
        chunks, groups: the tokens that samples share, and those of similar length.
    """

    ids: Tensor
    positions: Tensor
    chunks: Sequence[_TokenChunk]
    groups: Sequence[Sequence[int]]

    @cached_property
    def pieces(self) -> tuple[PrefixPiece, ...]:
        """Pieces of attention, which together hold every token once as a query, in order."""
        return tuple(_piece(self.chunks, group, self.ids.device) for group in self.groups)

    @cached_property
    def paths(self) -> KeyPaths:
        """The same for one kernel."""
        order = [index for group in self.groups for index in group]
        sizes = [self.chunks[index].size for index in order]
        reaches = [self.chunks[index].stop for index in order]
        keys = None
        if sizes != reaches:
            paths = chain.from_iterable(_path(self.chunks, index) for index in order)
            keys = to_device(_places(paths), self.ids.device)
        ends = np.cumsum([[0, 0], *zip(sizes, reaches, strict=True)], axis=0, dtype=np.int32)
        columns = to_device(np.ascontiguousarray(ends.T), self.ids.device)
        return KeyPaths(keys, columns[0], columns[1], (max(sizes), max(reaches)))


@dataclass(frozen=True)
class PrefixTree(PackedTokens):
    """The distinct tokens of some samples, and which of them predict.

    Args:
        predictors: (N,) packed indices whose outputs predict the trained tokens.
        needed: (R,) the distinct ones of these, in order.
        which: (N,) index into `needed` of each.
    """

    predictors: Tensor
    needed: Tensor
    which: Tensor


def to_device(array: np.ndarray, device: Any) -> Tensor:
    """An array as a tensor of the device; the host does not wait for what the device computes."""
    tensor = torch.as_tensor(array)
    if tensor.dtype == torch.float64:
        tensor = tensor.to(double_dtype(torch.device(device)))
    if torch.device(device).type in PINNED:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def plant(
    sequences: Sequence[list[int]], sample: np.ndarray, position: np.ndarray, device: Any = "cpu"
) -> PrefixTree:
    """Builds the tree of the ids of some samples, of which the last one is only predicted. For each
    trained token, `sample` (N,) is its sample, and `position` (N,) the index in it of the token
    before."""
    read = [ids[:-1] or ids for ids in sequences]
    stretches, paths = _grow(read)
    groups = _laid(stretches)
    placed = [stretches[index] for group in groups for index in group]
    ids = [read[chunk.sample][chunk.start : chunk.stop] for chunk in placed]
    starts = np.cumsum([0, *map(len, read)])
    whole = _places(stretches[index] for path in paths for index in path)
    predictors = whole[starts[sample] + position]
    needed, which = np.unique(predictors, return_inverse=True)
    return PrefixTree(
        to_device(np.array([*chain.from_iterable(ids)], dtype=np.int64), device),
        to_device(ranges([chunk.start for chunk in placed], [*map(len, ids)]), device),
        stretches,
        groups,
        to_device(predictors, device),
        to_device(needed, device),
        to_device(which, device),
    )


def merged(trees: Sequence[PrefixTree]) -> tuple[PackedTokens, list[np.ndarray]]:
    """The tokens of several trees, of which none sees another, and for each tree the packed indices
    (P,) of its own: chunks of similar length are one piece of attention, whose tree they are of."""
    if len(trees) == 1:
        return trees[0], [np.arange(len(trees[0].ids))]
    stretches: list[_TokenChunk] = []
    tree_chunks: list[list[_TokenChunk]] = []
    for tree in trees:
        first = len(stretches)
        stretches += [
            replace(part, parent=part.parent + first if part.parent >= 0 else -1)
            for part in tree.chunks
        ]
        tree_chunks.append([stretches[first + index] for group in tree.groups for index in group])
    groups = _laid(stretches)
    moved = [_places(part) for part in tree_chunks]
    order = to_device(np.argsort(np.concatenate(moved)), trees[0].ids.device)
    ids, positions = (
        torch.cat([getattr(tree, name) for tree in trees])[order] for name in ("ids", "positions")
    )
    return PackedTokens(ids, positions, stretches, groups), moved


def _laid(stretches: Sequence[_TokenChunk]) -> list[list[int]]:
    """Groups chunks of similar length, and gives each its place in this order."""
    groups = _similar(stretches)
    placed = 0
    for group in groups:
        for index in group:
            stretches[index].place = placed
            placed += stretches[index].size
    return groups


def _grow(read: Sequence[list[int]]) -> tuple[list[_TokenChunk], list[list[int]]]:
    """Splits sequences where others diverge; returns the chunks, and the chunk path of each
    sequence. In sorted order a sequence shares most with its predecessor, so one pass suffices."""
    order = sorted(range(len(read)), key=lambda number: read[number])
    stretches: list[_TokenChunk] = []
    paths: list[list[int]] = [[] for _ in read]
    path: list[int] = []
    done: list[int] = []
    for number in order:
        common = shared_prefix(read[done[-1]], read[number]) if done else 0
        while path and stretches[path[-1]].start >= common:
            path.pop()
        if path and stretches[path[-1]].stop > common:
            _cut(stretches, path[-1], common, paths, done)
        if common < len(read[number]):
            parent = path[-1] if path else -1
            stretches.append(_TokenChunk(number, common, len(read[number]), parent))
            path = [*path, len(stretches) - 1]
        paths[number] = list(path)
        done.append(number)
    return stretches, paths


def _cut(
    stretches: list[_TokenChunk], index: int, at: int, paths: list[list[int]], done: list[int]
) -> None:
    """Splits a chunk; its second half stays on the paths of the sequences that contain it."""
    first = stretches[index]
    rest = _TokenChunk(first.sample, at, first.stop, index)
    first.stop = at
    stretches.append(rest)
    new = len(stretches) - 1
    for chunk in stretches[:new]:
        if chunk.parent == index:
            chunk.parent = new
    for number in reversed(done):
        if index not in paths[number]:
            break
        paths[number].insert(paths[number].index(index) + 1, new)


def _places(chunks: Iterable[_TokenChunk]) -> np.ndarray:
    """Packed indices of the tokens of chunks, one after the other."""
    return ranges(*zip(*((chunk.place, chunk.size) for chunk in chunks), strict=True))


def ranges(starts: Sequence[int], sizes: Sequence[int] | np.ndarray) -> np.ndarray:
    """So many successive numbers from each start on, one after the other."""
    ends = np.cumsum(sizes, dtype=np.int64)
    return np.arange(ends[-1]) + np.repeat(np.subtract(starts, ends) + sizes, sizes)


def _path(stretches: Sequence[_TokenChunk], index: int) -> list[_TokenChunk]:
    """The chunks from the root to one of them."""
    path = [stretches[index]]
    while path[-1].parent >= 0:
        path.append(stretches[path[-1].parent])
    return path[::-1]


def _similar(stretches: Sequence[_TokenChunk]) -> list[list[int]]:
    """Groups of chunks that can be computed together with little padding."""
    order = sorted(
        range(len(stretches)),
        key=lambda i: (stretches[i].start > 0, stretches[i].size, stretches[i].stop, i),
    )
    groups: list[list[int]] = []
    asking = key_count = content = 0
    root = True
    for index in order:
        chunk = stretches[index]
        size, reach = chunk.size, chunk.stop
        wide, deep = max(asking, size), max(key_count, reach)
        full = (len(groups[-1]) + 1) * wide * deep if groups else math.inf
        if root != (chunk.start == 0) or full > WASTE * (content + size * reach) + SPARE:
            groups.append([])
            wide, deep, content = size, reach, 0
        groups[-1].append(index)
        asking, key_count, content, root = wide, deep, content + size * reach, chunk.start == 0
    return groups


def _piece(stretches: Sequence[_TokenChunk], group: Sequence[int], device: Any) -> PrefixPiece:
    chosen = [stretches[index] for index in group]
    sizes, reaches = [chunk.size for chunk in chosen], [chunk.stop for chunk in chosen]
    asking, key_count = max(sizes), max(reaches)
    start = chosen[0].place
    rows = inside = keys = None
    if min(sizes) < asking:
        first, column = np.array([[chunk.place] for chunk in chosen]), np.arange(asking)
        real = column < np.array(sizes)[:, None]
        rows = to_device(np.where(real, first + column, first), device)
        inside = to_device(np.flatnonzero(real), device)
    if sizes != reaches:
        paths = [_path(stretches, index) for index in group]
        table = np.repeat([[path[0].place] for path in paths], key_count, axis=1)
        real = np.arange(key_count) < np.array(reaches)[:, None]
        table[real] = _places(chain.from_iterable(paths))
        keys = to_device(table, device)
    return PrefixPiece(
        start,
        start + sum(sizes),
        rows,
        inside,
        keys,
        to_device(np.array([[chunk.start, chunk.size] for chunk in chosen]), device),
        (len(chosen), asking, key_count),
    )
