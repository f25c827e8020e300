"""The embedded model: a small causal language model that is built offline, on first use, as an
ordinary Hugging Face folder."""

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mrlm.core.errors import ModelError
from mrlm.core.log import log

NAME = "mrlm/tiny"
"""Name of the model of `default_model()` in a config."""

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = Path(__file__).with_suffix(".jinja").read_text(encoding="utf-8")

ARCHITECTURE: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}  # fmt: skip

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
"""The name of a repository of the hub."""
_RECIPE = 1  # increase it when the code below changes the files
_SNAPSHOT = re.compile(r"[/\\]models--([^/\\]+)[/\\]snapshots[/\\][^/\\]+[/\\]?$")
"""The folder of a model in the cache of the hub's client."""
_FILES = (
    "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
    "tokenizer_config.json", "chat_template.jinja",
)  # fmt: skip


def default_model() -> str:
    """The path of the default model: a small transformer with random weights, built at first use.

    It is `$MRLM_MODEL` if that is set; else the embedded model (weights of seed 0)
    in `$MRLM_CACHE`, else in `mrlm` under `$XDG_CACHE_HOME` or `~/.cache`. Concurrent calls by
    several processes are safe. `AutoModelForCausalLM` and `AutoTokenizer` need no network.

    Raises:
        ModelError: `$MRLM_MODEL` is not a folder.
    """
    if chosen := os.environ.get("MRLM_MODEL"):
        folder = Path(chosen).expanduser()
        if not folder.is_dir():
            raise ModelError(
                f"MRLM_MODEL={chosen!r} is not a folder; set it to a local Hugging Face model "
                "folder, or unset it to use the embedded model"
            )
        return str(folder.absolute())
    name, cache = _folder_name(), cache_folder()
    if cache is not None and _is_complete(cache / name):
        return str(cache / name)
    root = writable_cache(cache)
    if not _is_complete(root / name):
        build_folder(root / name, _write, _is_complete)
    return str(root / name)


def resolve_model(name: str) -> str:
    """`name` for Hugging Face loaders: `mrlm/tiny` becomes the folder of `default_model()`, every
    other name is unchanged."""
    return default_model() if name == NAME else name


def portable_name(path: str) -> str:
    """A model's name that other machines know: that of the embedded model, or the hub id, for a
    folder of a cache; any other path or name unchanged.

    Example:
        >>> portable_name("/cache/hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de")
        'Qwen/Qwen3-0.6B'
    """
    if Path(path).name == _folder_name():
        return NAME
    match = _SNAPSHOT.search(path)
    return path if match is None else match[1].replace("--", "/")


def _folder_name() -> str:
    """The name of the folder of the embedded model, which depends on its content."""
    content = json.dumps([_RECIPE, ARCHITECTURE, CHAT_TEMPLATE, PAD, START, END])
    return f"tiny-{hashlib.blake2b(content.encode(), digest_size=6).hexdigest()}"


def cache_folder() -> Path | None:
    """The user's cache folder; `None` without a home folder."""
    try:
        if configured := os.environ.get("MRLM_CACHE"):
            return Path(configured).expanduser().absolute()
        shared = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(shared) if os.path.isabs(shared) else Path.home() / ".cache") / "mrlm"
    except RuntimeError:  # no home folder can be determined
        return None


def writable_cache(cache: Path | None) -> Path:
    """`cache`, created if needed; a temporary folder, with a warning, if it cannot be written."""
    if cache is None:
        reason = "no home folder exists"
    else:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=cache):
                return cache
        except OSError as error:
            reason = f"{cache}: {error.strerror}"
    folder = _temporary_folder()
    log.warning(
        "no cache folder can be written (%s); the embedded model is kept in %s; set MRLM_CACHE to "
        "a folder of yours",
        reason,
        folder,
    )
    return folder


def _temporary_folder() -> Path:
    """The user's private folder, the same for every call, unless its name is of another user."""
    folder = Path(tempfile.gettempdir()) / f"mrlm-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    private = status.st_uid == os.getuid() and not status.st_mode & 0o022
    if folder.is_symlink() or not private:
        return Path(tempfile.mkdtemp(prefix="mrlm-"))
    return folder


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _FILES)


def build_folder(
    target: Path, write: Callable[[Path], None], complete: Callable[[Path], bool]
) -> None:
    """Builds a folder under a temporary name and renames it, so that none reads an incomplete one.

    Args:
        target: the folder; its parent exists.
        write: writes the files into an empty folder.
        complete: whether a folder has all its files.
    """
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as work:
        built = Path(work) / target.name
        built.mkdir()
        write(built)
        if target.exists() and not complete(target):  # files were deleted by hand
            with contextlib.suppress(FileNotFoundError):
                target.rename(Path(work) / "damaged")
        try:
            built.rename(target)
        except OSError:
            if not complete(target):
                raise
            # another process was faster; its folder contains the same model


def _write(folder: Path) -> None:
    """Write model, tokenizer, template and generation config as `save_pretrained` would."""
    import torch
    from safetensors.torch import save_file
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    tokenizer = _tokenizer()
    tokens = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = Qwen3Config(
        **ARCHITECTURE,
        **tokens,
        bos_token_id=None,
        vocab_size=len(tokenizer),
        architectures=[Qwen3ForCausalLM.__name__],
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config).float()
    weights = {key: value for key, value in model.state_dict().items() if key != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    GenerationConfig(**tokens, do_sample=True).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer() -> Any:
    """One token per byte and three special ones: 259 in all."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([PAD, START, END, *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        model_max_length=ARCHITECTURE["max_position_embeddings"],
        clean_up_tokenization_spaces=False,
    )
