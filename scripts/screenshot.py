"""Draws the README's picture of the viewer from a run: the curves of its last stage, and a group of
siblings of which some were rewarded.

    make quickstart-real && python -m scripts.screenshot outputs/quickstart_pretrained
"""

from __future__ import annotations

import argparse
import base64
import struct
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mrlm.record.filters import evaluation
from mrlm.record.reader import RecordedEpisode
from mrlm.viewer.export import export_run
from mrlm.viewer.listing import group_key
from mrlm.viewer.source import viewed_stages

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "viewer.png"
WIDTH = 1280
LARGEST = 200_000
"""Bytes of the picture."""
MAX_MB = 64.0
"""Limit of the page, so that all episodes of a small run are in it."""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a run folder, as outputs/quickstart_pretrained")
    parser.add_argument("-o", "--output", type=Path, default=PICTURE)
    given = parser.parse_args()
    group = interesting_group(given.run)
    data = encoded(np.concatenate(pictures(given.run, group)))
    if len(data) > LARGEST:
        raise SystemExit(f"{given.output}: {len(data):,} bytes, more than {LARGEST:,}")
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_bytes(data)
    print(f"{given.output}: {len(data):,} bytes, group {group}")


def interesting_group(run: Path) -> int:
    """The number in the page of a group of the last stage with recorded tokens, with about as many
    rewarded siblings as others, and with the most different completions."""
    stages = viewed_stages(run)
    numbers: dict[str, int] = {}
    groups: dict[str, list[RecordedEpisode]] = {}
    for stage in stages:
        for row in stage.episodes():
            key = group_key(stage.name, row)
            numbers.setdefault(key, len(numbers))
            if stage is stages[-1] and not evaluation(row):
                groups.setdefault(key, []).append(RecordedEpisode(row))

    def interest(key: str) -> tuple[float, int]:
        rewards = [episode.reward or 0.0 for episode in groups[key]]
        top = sum(reward == max(rewards) for reward in rewards) / len(rewards)
        texts = {turn.text for episode in groups[key] for turn in episode.turns}
        return -abs(top - 0.5), len(texts)

    seen = [
        key
        for key, episodes in groups.items()
        if all(turn.ids is not None for episode in episodes for turn in episode.turns)
    ]
    return numbers[max(seen, key=interest)]


def pictures(run: Path, group: int) -> list[np.ndarray]:
    """The pages of a run down to its table, and of a group: (H, W, 3) bytes each."""
    with tempfile.TemporaryDirectory() as folder, browser(WIDTH) as window:
        page = Path(folder) / "run.html"
        made = export_run(run, page, max_mb=MAX_MB)
        if made.sentence:
            raise SystemExit(f"{run}: too large for one page ({made.sentence})")
        above = 'document.querySelector("details").getBoundingClientRect().top - 4'
        whole = 'document.querySelector("main").lastChild.getBoundingClientRect().bottom + 12'
        places = (("/", above), (f"/group/{group}", whole))
        return [shot(window, page, place, "0", bottom) for place, bottom in places]


@contextmanager
def browser(width: int) -> Iterator[Any]:
    """A headless Chromium of this width, that of the tests."""
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    from chromium import Browser

    window = Browser()
    try:
        window.size(width, 1400)
        yield window
    finally:
        window.close()


def shot(window: Any, page: Path, place: str, top: str, bottom: str) -> np.ndarray:
    """A part of a page, as wide as the window: (H, W, 3) bytes.

    Args:
        window: the browser.
        page: an exported page.
        place: what follows `#` in its address.
        top, bottom: expressions whose values are where the part begins and ends.
    """
    window.open(page, place)
    width, start = window.js("innerWidth"), int(window.js(top))
    height = int(window.js(bottom)) - start
    clip = {"x": 0, "y": start, "width": width, "height": height, "scale": 1}
    shown = {"format": "png", "clip": clip, "captureBeyondViewport": True}
    data = window.send("Page.captureScreenshot", **shown)["data"]
    window.send("Page.navigate", url="about:blank")
    return _pixels(window.js(_DECODE % data))


_DECODE = """new Promise((done, failed) => {
  const image = new Image()
  image.onerror = failed
  image.onload = () => {
    const canvas = document.createElement("canvas")
    canvas.width = image.width
    canvas.height = image.height
    const context = canvas.getContext("2d")
    context.drawImage(image, 0, 0)
    const bytes = context.getImageData(0, 0, image.width, image.height).data
    let text = ""
    for (let at = 0; at < bytes.length; at += 32768)
      text += String.fromCharCode(...bytes.subarray(at, at + 32768))
    done([image.height, image.width, btoa(text)])
  }
  image.src = "data:image/png;base64,%s"
})"""
"""Decodes a picture in the browser, which has a decoder."""


def _pixels(decoded: tuple[int, int, str]) -> np.ndarray:
    height, width, data = decoded
    return np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)[..., :3]


def encoded(pixels: np.ndarray) -> bytes:
    """A PNG with at most 256 colours, those that occur most; others become the nearest of them.

    Args:
        pixels: (H, W, 3) bytes.
    """
    height, width, _ = pixels.shape
    flat = pixels.reshape(-1, 3).astype(np.uint32)
    codes, places, counts = np.unique(
        flat[:, 0] << 16 | flat[:, 1] << 8 | flat[:, 2], return_inverse=True, return_counts=True
    )
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], 1).astype(np.int64)
    palette = colours[np.argsort(-counts, kind="stable")[:256]]
    distance = ((colours[:, None] - palette[None]) ** 2).sum(-1)
    indices = distance.argmin(1).astype(np.uint8)[places].reshape(height, width)
    rows = np.concatenate([np.zeros((height, 1), np.uint8), indices], 1)
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = {b"IHDR": head, b"PLTE": palette.astype(np.uint8).tobytes()}
    parts |= {b"IDAT": zlib.compress(rows.tobytes(), 9), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts.items()
    )


if __name__ == "__main__":
    main()
