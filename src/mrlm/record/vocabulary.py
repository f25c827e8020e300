"""`vocabulary.json.gz` of a run folder: the bytes of every token, so that a record can be read as
text without the tokenizers. One token is not one character: a character may be several."""

import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrlm.record.opening import run_file

VOCABULARY = "vocabulary.json.gz"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"


def write_vocabulary(folder: Path, tokenizers: Mapping[str, Any]) -> None:
    """Writes the tokens of all policies (policy -> its tokenizer) into a run folder; equal
    vocabularies are written once."""
    pieces: list[list[str]] = []
    places: dict[int, int] = {}
    policies: dict[str, int] = {}
    for name, tokenizer in tokenizers.items():
        if id(tokenizer) not in places:
            # bytes as the characters with their numbers
            token_texts = [piece.decode("latin-1") for piece in token_bytes(tokenizer)]
            if token_texts not in pieces:
                pieces.append(token_texts)
            places[id(tokenizer)] = pieces.index(token_texts)
        policies[name] = places[id(tokenizer)]
    data = json.dumps({"policies": policies, "pieces": pieces}).encode()
    (folder / VOCABULARY).write_bytes(gzip.compress(data, 6, mtime=0))


def read_vocabulary(folder: Path) -> dict[str, list[bytes]]:
    """Policy -> bytes of its tokens, in order of their ids; empty if nothing was recorded."""
    path = run_file(folder, VOCABULARY)
    if path is None:
        return {}
    contents = json.loads(gzip.decompress(path.read_bytes()))
    tables = [[piece.encode("latin-1") for piece in table] for table in contents["pieces"]]
    return {name: tables[index] for name, index in contents["policies"].items()}


def token_bytes(tokenizer: Any) -> list[bytes]:
    """The bytes of every token of a tokenizer, special tokens as their names."""
    names = [name or "" for name in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))]
    added = set(tokenizer.get_added_vocab())
    alphabet = byte_alphabet()
    byte_level = [name not in added and alphabet.keys() >= set(name) for name in names]
    spaced = sum(_SPACE in name for name in names)
    if spaced and 10 * spaced > len(names) - sum(byte_level):
        return [name.encode() if name in added else _spaced(name) for name in names]
    table = {ord(char): byte for char, byte in alphabet.items()}
    return [
        name.translate(table).encode("latin-1") if plain else name.encode()
        for name, plain in zip(names, byte_level, strict=True)
    ]


def byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level tokenizers: printable bytes are themselves, the others
    are numbered from 256 (GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


def _spaced(name: str) -> bytes:
    """The bytes of a SentencePiece token."""
    byte = _BYTE.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace(_SPACE, " ").encode()
