"""The pay-off matrix of players of a game, as a table and as a picture, for trackers."""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CELL, SCALE = (56, 28), 2
"""Width and height of a cell, and size of a dot of a digit, in pixels."""
LOW, HIGH, MIDDLE = (214, 153, 96), (94, 149, 201), (255, 255, 255)
"""Colours of a mean score of 0, of 1, and of 0.5."""
UNKNOWN, LABEL, INK = (236, 238, 240), (250, 250, 250), (30, 34, 40)
DIGITS = {
    **{"0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711", "5": "74717"},
    **{"6": "74757", "7": "71111", "8": "75757", "9": "75717", ".": "00002"},
}
"""Digits as rows of three dots, a row in an octal figure."""


@dataclass(frozen=True, slots=True)
class Payoffs:
    """Mean scores of players against each other: 0 to 1, of the row's player against the column's;
    `None` if they have not met."""

    players: Sequence[str]
    scores: Sequence[Sequence[float | None]]

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Titles and rows: a player, its number in the picture, and its scores."""
        titles = ["player", "number", *self.players]
        rows = zip(self.players, self.scores, strict=True)
        return titles, [[name, number, *scores] for number, (name, scores) in enumerate(rows, 1)]

    def markdown(self) -> str:
        """The table in Markdown."""
        titles, rows = self.table()
        all_rows = [titles, ["---"] * len(titles), *rows]
        lines = [["-" if cell is None else _text(cell) for cell in row] for row in all_rows]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)

    def pixels(self) -> np.ndarray:
        """The picture, (H, W, 3) bytes: a row and a column per player, with their numbers; the
        mean score of the row against the column, blue above one half, orange below."""
        width, height = CELL
        count = len(self.players) + 1
        picture = np.empty((count * height, count * width, 3), np.uint8)
        picture[:] = LABEL
        for row in range(count):
            for column in range(count):
                text, colour = "", LABEL
                if row and column:
                    score = self.scores[row - 1][column - 1]
                    text = "" if score is None else f"{score:.2f}"
                    colour = _colour(score)
                elif row or column:
                    text = str(row or column)
                top, left = row * height, column * width
                picture[top : top + height - 1, left : left + width - 1] = colour
                _write(picture, text, top, left)
        return picture

    def png(self) -> bytes:
        """The picture as a PNG."""
        pixels = self.pixels()
        height, width, _ = pixels.shape
        rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], 1)
        head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
            for name, data in parts
        )


def _text(cell: Any) -> str:
    text = f"{cell:.2f}" if isinstance(cell, float) else str(cell)
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _colour(score: float | None) -> tuple[int, ...]:
    if score is None:
        return UNKNOWN
    share = min(1.0, abs(score - 0.5) * 2)
    end = HIGH if score >= 0.5 else LOW
    return tuple(round(m + (e - m) * share) for m, e in zip(MIDDLE, end, strict=True))


def _write(picture: np.ndarray, text: str, top: int, left: int) -> None:
    """Writes digits into the middle of a cell."""
    width, height = CELL
    left += (width - 4 * SCALE * len(text)) // 2
    top += (height - 5 * SCALE) // 2
    for char in text:
        for y, figure in enumerate(DIGITS[char]):
            for x in range(3):
                if int(figure) >> (2 - x) & 1:
                    at = top + y * SCALE, left + x * SCALE
                    picture[at[0] : at[0] + SCALE, at[1] : at[1] + SCALE] = INK
        left += 4 * SCALE
