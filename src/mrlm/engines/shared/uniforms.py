"""The random numbers of requests: those of numpy's Philox generator, of many requests at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mrlm.play.engine import Request

FEWEST = 32
"""Requests from which their numbers are computed together."""
LONGEST = 128
"""Numbers of a request up to which they are: numpy's own next number costs less."""
ROUNDS = 10
LOW = 0xFFFFFFFF


def uniforms_of(requests: Sequence[Request], width: int) -> np.ndarray:
    """The first `width` of each request's own random numbers in [0, 1), (N, width): those of
    `numpy.random.Philox` with its seed."""
    seeds = [request.seed for request in requests]
    if len(seeds) >= FEWEST and width <= LONGEST:
        return _together(np.array(seeds, dtype=np.uint64), width)
    uniforms = np.empty((len(seeds), width))
    for row, seed in zip(uniforms, seeds, strict=True):
        np.random.Generator(np.random.Philox(seed)).random(out=row)
    return uniforms


def _together(seeds: np.ndarray, width: int) -> np.ndarray:
    """The numbers (N, width) of seeds (N,): Philox 4x64 with 10 rounds (Salmon et al., "Parallel
    random numbers: as easy as 1, 2, 3", 2011), four numbers to a count."""
    key = _keys(seeds)[:, :, None]
    even = np.zeros((2, len(seeds), -(-width // 4)), dtype=np.uint64)
    even[0] = np.arange(1, even.shape[2] + 1)
    odd = np.zeros_like(even)
    for _ in range(ROUNDS):
        high, low = _product(even)
        even, odd = high[::-1] ^ odd ^ key, low[::-1]
        key = key + BUMPS
    words = np.stack([even[0], odd[0], even[1], odd[1]], -1).reshape(len(seeds), -1)
    return (words[:, :width] >> 11) * 2.0**-53


def _product(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The upper and lower 64 bits of `x * FACTORS`."""
    low, high = x & LOW, x >> 32
    middle = high * FACTORS_LOW + (low * FACTORS_LOW >> 32)
    other = low * FACTORS_HIGH + (middle & LOW)
    return high * FACTORS_HIGH + (middle >> 32) + (other >> 32), x * FACTORS


def _keys(seeds: np.ndarray) -> np.ndarray:
    """The keys (2, N) of seeds (N,): those that `numpy.random.SeedSequence` makes."""
    pool = np.zeros((4, len(seeds)), dtype=np.uint32)
    pool[0], pool[1] = seeds & LOW, seeds >> 32
    pool = _hashed(pool, MIXED[:5])
    for source in range(4):
        others = [at for at in range(4) if at != source]
        start = 4 + 3 * source
        mixed = LEFT * pool[others] - RIGHT * _hashed(pool[source], MIXED[start : start + 4])
        pool[others] = mixed ^ mixed >> 16
    words = _hashed(pool, DRAWN).astype(np.uint64)
    return words[::2] | words[1::2] << 32


def _hashed(words: np.ndarray, constants: np.ndarray) -> np.ndarray:
    """A hash of each of n words (n, N), or of one (N,) n times, with n + 1 constants."""
    mixed = (words ^ constants[:-1]) * constants[1:]
    return mixed ^ mixed >> 16


def _column(numbers: Sequence[int], kind: type[np.unsignedinteger]) -> np.ndarray:
    return np.array(numbers, dtype=kind).reshape(-1, *[1] * (1 if kind is np.uint32 else 2))


def _constants(first: int, factor: int, count: int) -> np.ndarray:
    """The constants of a sequence of hashes."""
    return _column([first * factor**at % 2**32 for at in range(count)], np.uint32)


MIXED = _constants(0x43B0D7E5, 0x931E8875, 17)
DRAWN = _constants(0x8B51F9DD, 0x58F38DED, 5)
LEFT, RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
FACTORS = _column([0xD2E7470EE14C6C93, 0xCA5A826395121157], np.uint64)
FACTORS_LOW, FACTORS_HIGH = FACTORS & LOW, FACTORS >> 32
BUMPS = _column([0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B], np.uint64)
