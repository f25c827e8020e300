"""A prefix cache of keys and values between calls: a radix tree of token ids over one memory pool.
Independent of models; a token's keys and values are one row of numbers."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from mrlm.learn.fast.prefix_tree import to_device

AT_ONCE = 1024
"""Tokens that are copied at once."""
NOTHING = np.empty(0, dtype=np.int64)
Ids = np.ndarray
Key = tuple[Hashable, ...]
"""The weights that computed a text, and anything else that separates texts."""


@dataclass(slots=True, eq=False)
class _Node:
    """A run of tokens after those of its parent: their ids (n,), and the pool's rows (n,) that hold
    their keys and values."""

    ids: Ids
    rows: np.ndarray
    parent: "_Node | None"
    children: "dict[int, _Node]" = field(default_factory=dict)
    used: int = 0


class PrefixCache:
    """A radix tree of cached texts in bounded memory, with LRU eviction.

    Every text belongs to a key; keys share only the pool.

    Args:
        shape: shape of the keys and values of one token.
        limit: most tokens that are cached; 0 caches nothing.
        dtype, device: type and device of the pool.
    """

    def __init__(
        self, shape: Sequence[int], limit: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.limit = limit
        self.pool: Tensor = torch.empty(limit, *shape, dtype=dtype, device=device)
        self._unused = 0  # rows from here on were never used, and their memory never touched
        self._free: list[int] = []
        self._roots: dict[Key, _Node] = {}
        self._clock = 0

    @property
    def held(self) -> int:
        """Number of cached tokens."""
        return self._unused - len(self._free)

    def begin(self) -> None:
        """Begin a round: entries that are read or added from now on are not evicted before the next
        round."""
        self._clock += 1

    def flush(self, owner: Hashable | None = None) -> None:
        """Drop the texts of all keys that begin with `owner`, or all texts."""
        gone = [key for key in self._roots if owner is None or key[0] == owner]
        waiting = [self._roots.pop(key) for key in gone]
        while waiting:
            node = waiting.pop()
            self._free += node.rows.tolist()
            waiting += node.children.values()

    def match(self, key: Key, ids: Ids) -> np.ndarray:
        """The pool's rows (n,) of the longest cached prefix of a text (N,)."""
        root = self._roots.get(key)
        if root is None:
            return NOTHING
        rows, _, _ = self._walk(root, ids)
        return np.concatenate([*rows, NOTHING])

    def read(self, rows: np.ndarray) -> Tensor:
        """Keys and values (n, *shape) of rows."""
        return self.pool[to_device(rows, self.pool.device)]

    def add(self, key: Key, ids: Ids, start: int) -> tuple[int, np.ndarray]:
        """Allocate rows for a text (N,) whose tokens are available from `start` on.

        Returns:
            The first token that is not cached, and the rows to `write` the tokens from there into,
            possibly fewer than needed, or none.
        """
        if self.limit == 0:
            return len(ids), NOTHING
        root = self._roots.get(key)
        if root is None:
            root = self._roots[key] = _Node(ids[:0], NOTHING, None)
        _, node, length = self._walk(root, ids)
        if length < start or length == len(ids):
            return len(ids), NOTHING
        rows = self._take(len(ids) - length)
        if len(rows):
            new = ids[length : length + len(rows)]
            if node.parent is None or node.children:
                node.children[int(new[0])] = _Node(new, rows, node, used=self._clock)
            else:  # a conversation that continues stays one node, however many turns it has
                node.ids = np.concatenate([node.ids, new])
                node.rows = np.concatenate([node.rows, rows])
        return length, rows

    def write(self, rows: np.ndarray, values: Tensor) -> None:
        """Store keys and values (n, *shape) in rows (n,)."""
        self.pool[to_device(rows, self.pool.device)] = values

    def copy(
        self,
        places: Sequence[np.ndarray],
        owners: Sequence[np.ndarray],
        columns: Sequence[np.ndarray],
        gather: Callable[[np.ndarray, np.ndarray], Tensor],
    ) -> None:
        """Store keys and values that `gather` returns for owners and columns in rows `places`, a
        few at once."""
        if not sum(map(len, places)):
            return
        into, out, at = (np.concatenate(arrays) for arrays in (places, owners, columns))
        for start in range(0, len(into), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            self.write(into[part], gather(out[part], at[part]))

    def _walk(self, root: _Node, ids: Ids) -> tuple[list[np.ndarray], _Node, int]:
        """Follow a text as far as it is cached: the rows of the nodes, the last of them, and their
        number of tokens. A node that agrees only in part is split."""
        rows: list[np.ndarray] = []
        node, at = root, 0
        node.used = self._clock
        while at < len(ids):
            child = node.children.get(int(ids[at]))
            if child is None:
                break
            most = min(len(child.ids), len(ids) - at)
            differs = np.flatnonzero(child.ids[:most] != ids[at : at + most])
            same = int(differs[0]) if len(differs) else most
            if same < len(child.ids):
                child = self._cut(child, same)
            child.used = self._clock
            rows.append(child.rows)
            node, at = child, at + same
        return rows, node, at

    @staticmethod
    def _cut(node: _Node, at: int) -> _Node:
        """Split a node in two; returns the upper half."""
        parent = node.parent
        assert parent is not None
        upper = _Node(node.ids[:at], node.rows[:at], parent, used=node.used)
        parent.children[int(upper.ids[0])] = upper
        node.ids, node.rows, node.parent = node.ids[at:], node.rows[at:], upper
        upper.children[int(node.ids[0])] = node
        return upper

    def _take(self, count: int) -> np.ndarray:
        """Take up to `count` rows: released ones, new ones up to the limit, those of old leaves."""
        more = min(count - len(self._free), self.limit - self._unused)
        if more > 0:
            self._free += range(self._unused, self._unused + more)
            self._unused += more
        if len(self._free) < count:
            self._evict(count - len(self._free))
        at = max(len(self._free) - count, 0)
        taken = np.array(self._free[at:], dtype=np.int64)
        del self._free[at:]
        return taken

    def _evict(self, count: int) -> None:
        """Free at least `count` rows not used in this round, if there are as many, oldest first."""
        goal = len(self._free) + count
        while len(self._free) < goal:
            leaves = sorted(self._idle_leaves(), key=lambda node: node.used)
            if not leaves:
                return
            for leaf in leaves:
                assert leaf.parent is not None
                del leaf.parent.children[int(leaf.ids[0])]
                self._free += leaf.rows.tolist()
                if len(self._free) >= goal:
                    return

    def _idle_leaves(self) -> list[_Node]:
        leaves, waiting = [], list(self._roots.values())
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            if not node.children and node.parent is not None and node.used < self._clock:
                leaves.append(node)
        return leaves
