"""Tokenizers of the families that models come from, small, each with its family's own chat
template: byte-level and sentence pieces, role tokens that are special, added only, or ordinary
text."""

# ruff: noqa: RUF001 (the bars in the tokens of DeepSeek are wide ones)

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from places import FIXTURES

FOLDER = FIXTURES / "templates"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = [Path(__file__).read_text(encoding="utf-8"), (FOLDER / "glm.jinja").read_text("utf-8")]


def byte_level(special: list[str], added: list[str]) -> Tokenizer:
    """As Llama 3, Qwen and DeepSeek."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _train(core, [*special, *added], alphabet)
    return core


def pieces(prepend: bool) -> Callable[[list[str], list[str]], Tokenizer]:
    """Sentence pieces with bytes to fall back on, as Mistral (a space before each text) and
    Gemma."""

    def build(special: list[str], added: list[str]) -> Tokenizer:
        learned = Tokenizer(models.BPE())
        learned.normalizer = normalizers.Replace(" ", "▁")
        _train(learned, [*special, *added], [])
        found = json.loads(learned.to_str())["model"]
        fallback = [f"<0x{byte:02X}>" for byte in range(256)]
        core = Tokenizer(
            models.BPE(
                vocab={token: at for at, token in enumerate([*found["vocab"], *fallback])},
                merges=[tuple(merge) for merge in found["merges"]],
                byte_fallback=True,
                unk_token="<unk>",
                fuse_unk=True,
            )
        )
        spaces: list[Any] = [normalizers.Replace(" ", "▁")]
        core.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), *spaces] if prepend else spaces
        )
        end: list[Any] = [decoders.Strip(" ", 1, 0)] if prepend else []
        core.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *end]
        )
        return core

    return build


def lowered(special: list[str], added: list[str]) -> Tokenizer:
    """Byte-level, of lower case: control tokens are looked for in what that makes of a text."""
    core = byte_level(special, added)
    core.normalizer = normalizers.Lowercase()
    return core


def words(special: list[str], added: list[str]) -> Tokenizer:
    """A vocabulary of words, which cannot spell what it does not know."""
    core = Tokenizer(models.WordLevel(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.train_from_iterator(
        CORPUS, trainers.WordLevelTrainer(special_tokens=[*special, *added], vocab_size=400)
    )
    return core


def _train(core: Tokenizer, tokens: list[str], alphabet: list[str]) -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=len(tokens) + 700, special_tokens=tokens, initial_alphabet=alphabet
    )
    core.train_from_iterator(CORPUS, trainer)


Build = Callable[[list[str], list[str]], Tokenizer]
IM = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
THINK = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
TURNS = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
HEADERS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
DEEP = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"]
GLM = ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
FAMILIES: dict[str, tuple[str, Build, list[str], list[str], str]] = {
    "chatml": ("chatml", byte_level, IM, THINK[2:], IM[2]),
    "llama3": ("llama3", byte_level, HEADERS, [], HEADERS[3]),
    "mistral": ("mistral", pieces(True), ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], [], "</s>"),
    "mistral-text": ("mistral", pieces(True), ["<unk>", "<s>", "</s>"], [], "</s>"),
    "gemma": ("gemma", pieces(False), TURNS, ["\n", "\n\n", "▁▁"], TURNS[5]),
    "gemma3": ("gemma3", pieces(False), TURNS, ["\n", "\n\n", "▁▁"], TURNS[5]),
    "qwen3": ("qwen3", byte_level, IM, THINK, IM[2]),
    "qwen3-marked": ("qwen3_marked", byte_level, IM, THINK, IM[2]),
    "deepseek": ("deepseek", byte_level, DEEP, ["<｜User｜>", "<｜Assistant｜>", *THINK], DEEP[1]),
    "glm": ("glm", byte_level, ["<|endoftext|>", *GLM], THINK, GLM[3]),
    "lowered": ("chatml", lowered, IM, THINK[2:], IM[2]),
    "words": ("chatml", words, ["<unk>", *IM], [], IM[2]),
}
"""Name -> its template, how its tokenizer is made, special and other added tokens, what ends an
answer."""


@cache
def family(name: str) -> Any:
    """A tokenizer of a family, with the family's template."""
    template, build, special, added, end = FAMILIES[name]
    core = build(special, added)
    normal = name in ("deepseek", "lowered")
    core.add_special_tokens([AddedToken(token, normalized=normal) for token in special])
    core.add_tokens([AddedToken(token, normalized=normal, special=False) for token in added])
    first = next((token for token in special if "bos" in token or "begin" in token), None)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=end,
        bos_token="<s>" if "<s>" in special else first,
        unk_token="<unk>" if "<unk>" in special else None,
        extra_special_tokens=special,
        chat_template=(FOLDER / f"{template}.jinja").read_text(encoding="utf-8"),
        clean_up_tokenization_spaces=False,
    )
