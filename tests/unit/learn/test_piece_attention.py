"""Attention of packed tokens on a CPU, all pieces of a layer at once."""

import numpy as np
import pytest
import torch

from mrlm.learn.fast import prefix_tree
from mrlm.learn.fast.piece_attention import AttendPieces, HeadRows, piece_masks
from mrlm.learn.fast.prefix_tree import PrefixTree, plant

SIZE = 8
TEXTS = [
    [1, 2, 3, 4, 5, 6],
    [1, 2, 3, 4, 9, 7, 7, 7, 2],
    [1, 2, 3, 8],
    [1, 2, 3, 8, 5, 6, 7],
    [5, 5],
    [6, 1, 2, 2, 2, 2],
]


def tree_of(texts: list[list[int]]) -> PrefixTree:
    sample = np.repeat(np.arange(len(texts)), [len(ids) for ids in texts])
    place = np.concatenate([np.arange(len(ids)) for ids in texts])
    return plant([[*ids, 0] for ids in texts], sample, place)


def seen_by(tree: PrefixTree, window: int | None) -> torch.Tensor:
    """(P, P) whether packed tokens see packed tokens."""
    seen = torch.zeros(len(tree.ids), len(tree.ids), dtype=torch.bool)
    start = 0
    for ids in TEXTS:
        path = tree.predictors[start : start + len(ids)]
        start += len(ids)
        for place in range(len(path)):
            least = 0 if window is None else max(0, place + 1 - window)
            seen[path[place], path[least : place + 1]] = True
    return seen


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("spare", [0, 1 << 12])
def test_pieces_attend_as_tokens_do(
    stored: bool, window: int | None, heads: int, spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_tree, "SPARE", spare)
    monkeypatch.setattr(HeadRows, "stores_shares", lambda *_: stored)
    tree = tree_of(TEXTS)
    pieces = [HeadRows.of(each, heads, 2) for each in tree.pieces]
    assert spare == 0 or any(each.padding is not None for each in pieces)
    masks = piece_masks(tree, [window], torch.float32, causal=True)
    assert window or len(masks) < len(pieces), "some are causal"
    count, left = len(tree.ids), 3
    generator = torch.Generator().manual_seed(0)
    widths = heads * SIZE, 2 * SIZE, 2 * SIZE
    given = [
        torch.randn(count + left, width, generator=generator).requires_grad_() for width in widths
    ]
    grad = torch.randn(count + left, widths[0], generator=generator)
    exact = [x.detach().double().requires_grad_() for x in given]
    q, k, v = (x[:count].unflatten(1, (-1, SIZE)).transpose(0, 1) for x in exact)
    k, v = (x.repeat_interleave(heads // 2, 0) for x in (k, v))
    scores = (q @ k.transpose(1, 2) * 0.3).masked_fill(~seen_by(tree, window), -torch.inf)
    mixed = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)

    def computed() -> list[torch.Tensor]:
        chosen = [masks.get((number, window)) for number in range(len(pieces))]
        found = AttendPieces.apply(*given, SIZE, 0.3, pieces, chosen)
        assert isinstance(found, torch.Tensor)
        return [found.detach(), *torch.autograd.grad(found, given, grad)]

    ours, again = computed(), computed()
    assert all(torch.equal(one, two) for one, two in zip(ours, again, strict=True))
    theirs = [mixed, *torch.autograd.grad(mixed, exact, grad[:count].double())]
    assert not ours[0][count:].any()
    ours[0] = ours[0][:count]
    for found, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found.double(), wanted, atol=2e-6, rtol=1e-5)


def test_shares_are_stored_where_they_are_few() -> None:
    rows = torch.zeros(0, dtype=torch.long)
    few, many = (
        HeadRows(rows, None, rows, 0, 0, rows, (3, 4, 2, *sizes)) for sizes in ((16, 16), (17, 17))
    )
    assert few.stores_shares(8) and not many.stores_shares(8)
