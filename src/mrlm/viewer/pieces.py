"""Bytes of every token of a tokenizer, read from its `tokenizer.json` without loading it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "tokenizer.json"
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def run_pieces(folder: Path, policies: Mapping[str, str | None]) -> dict[str, list[bytes]]:
    """The token bytes of policies whose tokenizer lies in the run folder or beside their model.

    Args:
        folder: a run folder, or that of a stage.
        policies: policy -> its model, a folder or a hub id.
    """
    found: dict[str, list[bytes]] = {}
    known: dict[Path, list[bytes]] = {}
    for policy, model in policies.items():
        path = _tokenizer(folder, policy, model)
        if path is None:
            continue
        if path not in known:
            known[path] = pieces_of(json.loads(path.read_text(encoding="utf-8")))
        if known[path]:
            found[policy] = known[path]
    return found


def _tokenizer(folder: Path, policy: str, model: str | None) -> Path | None:
    saved = sorted(folder.glob("checkpoint-*"), key=lambda path: path.stat().st_mtime)
    places = [folder / "final" / policy, folder / "final"]
    places += [path / "policies" / policy for path in reversed(saved)]
    places += [Path(model)] if model else []
    return next((path / FILE for path in places if (path / FILE).is_file()), None)


def pieces_of(tokenizer: Mapping[str, Any]) -> list[bytes]:
    """The bytes of each token, by id; none if the kind of tokenizer is unknown.

    Args:
        tokenizer: content of `tokenizer.json`.
    """
    model = tokenizer.get("model") or {}
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, list):  # unigram: pairs of a token and its score
        vocabulary = {pair[0]: number for number, pair in enumerate(vocabulary)}
    kinds = set(_kinds(tokenizer.get("decoder")))
    if not vocabulary or not kinds & {"ByteLevel", "Replace", "Metaspace", "ByteFallback"}:
        return []
    added = {token["id"]: token["content"] for token in tokenizer.get("added_tokens") or ()}
    size = max([*vocabulary.values(), *added]) + 1
    pieces = [b""] * size
    letters = _letters()
    for token, number in vocabulary.items():
        pieces[number] = (
            bytes(letters[letter] for letter in token)
            if "ByteLevel" in kinds and all(letter in letters for letter in token)
            else _with_spaces(token)
        )
    for number, content in added.items():
        pieces[number] = content.encode()
    return pieces


def _kinds(decoder: Mapping[str, Any] | None) -> list[str]:
    if not decoder:
        return []
    return [str(decoder.get("type"))] + [
        kind for each in decoder.get("decoders") or () for kind in _kinds(each)
    ]


def _with_spaces(token: str) -> bytes:
    """A token of SentencePiece: a low line is a space, `<0x0A>` one byte."""
    byte = BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("\u2581", " ").encode()


def _letters() -> dict[str, int]:
    """Letter -> byte, as byte-level tokenizers write bytes that are not printable."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return letters | {chr(256 + number): byte for number, byte in enumerate(others)}
