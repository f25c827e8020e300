"""Loading of models and tokenizers. Errors name what is missing and where."""

import json
import os
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import psutil
import torch
from safetensors import SafetensorError, safe_open

from mrlm.config import load_config
from mrlm.core.errors import ModelError
from mrlm.core.tiny_model import NAME, portable_name
from mrlm.learn.policy import quantized
from mrlm.learn.policy.gguf import SHORT_NAMES, how_to_prepare, local_name
from mrlm.learn.policy.library import first_line, quietly

DTYPES: dict[str, Any] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "auto": "auto",
}

ADAPTER_CONFIG = "adapter_config.json"
BASES = "bases"
"""Folder of a team with the bases of its adapters."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def load_tokenizer(name: str, trust_remote_code: bool = False) -> Any:
    """Loads the tokenizer of a hub id, folder or run folder (for an adapter folder without one,
    that of its base model); a `ModelError` if none was found."""
    from transformers import AutoTokenizer

    path = run_model(local_name(name))
    _require_folder(path)
    if Path(path).is_dir() and not any((Path(path) / file).is_file() for file in TOKENIZER_FILES):
        base = adapter_base(path)
        if base is not None:
            return load_tokenizer(base, trust_remote_code)
        raise ModelError(
            f"{path}: the folder has no tokenizer (no tokenizer.json or tokenizer_config.json); "
            "save it there with tokenizer.save_pretrained, or set model.tokenizer_name_or_path"
        )
    try:
        with _reachable_hub(path):
            return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise ModelError(_not_loaded(name, path, "tokenizer", error)) from error


def load_model(
    name: str,
    dtype: str = "float32",
    trust_remote_code: bool = False,
    attn_implementation: str = "sdpa",
    device: str = "auto",
    scores: bool = False,
    quantization: str | None = None,
) -> Any:
    """Loads a causal language model (with `scores` a sequence classifier) from a hub id or a
    folder: of a model, a run, or an adapter, which is merged into its base. With `quantization`
    (`nf4`, `int8`) its linear layers are kept in 4 or 8 bits; a base merged into is dequantised,
    from what it was in the adapter's training unless another is given."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    path = run_model(local_name(name))
    _require_folder(path)
    base = adapter_base(path)
    if base is not None:
        same = dtype, trust_remote_code, attn_implementation, device
        kind = quantization or quantized.trained_on(path) or None
        loaded = quantized.without_quantization(load_model(base, *same, quantization=kind))
        peft = import_peft()
        adapted = peft.PeftModel.from_pretrained(loaded, path)
        saved = peft.load_peft_weights(path, device="cpu")
        require_weights(path, set(peft.get_peft_model_state_dict(adapted)) - {*saved})
        try:
            return adapted.merge_and_unload().requires_grad_(True)  # PEFT has frozen the base
        except (RuntimeError, ValueError, NotImplementedError) as error:
            raise ModelError(
                f"{name}: the adapter cannot be merged into its base: {first_line(error)}; use it "
                "as an adapter (train it further without lora: false, publish it with --base)"
            ) from error
    target = pick_device(device)
    how = quantized.loading(name, quantization, path, DTYPES[dtype], target)
    try:
        kind = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
        with quietly(), _reachable_hub(path):
            result: Any = kind.from_pretrained(
                path,
                output_loading_info=True,
                dtype=DTYPES[dtype],
                trust_remote_code=trust_remote_code,
                # by default sdpa if the model has it, without an error if not
                attn_implementation=None if attn_implementation == "sdpa" else attn_implementation,
                **how,
            )
    except Exception as error:
        raise ModelError(_not_loaded(name, path, "model", error)) from error
    model, report = result
    require_weights(name, report["missing_keys"])
    if getattr(model.config, "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")  # sdpa of some versions leaves out the soft cap
    return quantized.use_dequantized(model, DTYPES[dtype]) if how else model.to(target)  # pyright: ignore[reportArgumentType]


def require_weights(name: str, missing: Collection[str]) -> None:
    """Raises `ModelError` if weights are missing, which would be random numbers."""
    if missing:
        first = ", ".join(sorted(missing)[:3])
        raise ModelError(
            f"{name}: {len(missing)} weights of the model are missing in its files ({first}"
            f"{', ...' if len(missing) > 3 else ''}), and would be random numbers; save the whole "
            "model with save_pretrained, under the names that it loads them by"
        )


@contextmanager
def _reachable_hub(path: str) -> Iterator[None]:
    """Context in which the hub's client reads its cache alone if the hub's host has no address:
    it would try again for a minute."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    if not Path(path).is_dir() and not getproxies():
        try:
            socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
        except OSError:
            constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _not_loaded(name: str, path: str, what: str, error: BaseException) -> str:
    """The message about a model or tokenizer; names a damaged file of its folder."""
    if not Path(path).is_dir():
        if name in SHORT_NAMES:
            missing = f"{name}: the model is not in the cache and cannot be had from the hub"
            return missing + how_to_prepare(name)
        why, absent = first_line(error), f"{name}: folder {path!r} does not exist, and the hub"
        if "could not be asked" in why or "connect" in why:
            return f"{absent} cannot be reached; give a local folder"
        return f"{absent} has no {what} of this name: {why}"
    where = f"{name}: its {what} cannot be loaded"
    files = damaged_files(Path(path))
    if files:
        return f"{where}: file {str(files[0])!r} is damaged or cut short; copy it again"
    return f"{where}: {first_line(error)}"


def damaged_files(folder: Path) -> list[Path]:
    """The invalid JSON files and truncated weight files of a model folder."""
    files: list[Path] = []
    for file in sorted(folder.glob("*.json")):
        try:
            json.loads(file.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            files.append(file)
    return files + [file for file in sorted(folder.glob("*.safetensors")) if not _is_whole(file)]


def _is_whole(file: Path) -> bool:
    """Whether a safetensors file has a header, and the tensors that it names."""
    try:
        with safe_open(file, "pt"):
            return True
    except SafetensorError:
        return False


def pick_device(name: str) -> torch.device:
    """The device called `name` (`auto`: CUDA, else the GPU of a Mac, else the CPU); a `ModelError`
    if it is missing."""
    mps = torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if mps else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(
            f"model.device={name!r} is not a torch device; use 'cpu', 'cuda' or 'auto': "
            f"{first_line(error)}"
        ) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            f"model.device={name!r}, but torch finds no CUDA device; use 'cpu' or 'auto'"
        )
    if device.type == "mps" and not mps:
        raise ModelError(
            f"model.device={name!r}, but this is no Mac with a GPU; use 'cpu' or 'auto'"
        )
    return device


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device; those of the host, unless it is a CUDA device."""
    if device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def run_model(path: str) -> str:
    """The `final/` folder of a run folder; any other path or hub id unchanged."""
    path = os.path.expanduser(path)
    final = Path(path) / "final"
    return str(final) if final.is_dir() else path


def adapter_settings(path: str) -> dict[str, Any]:
    """The config of an adapter folder; empty for any other folder."""
    file = Path(path) / ADAPTER_CONFIG
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def adapter_base(path: str) -> str | None:
    """The base model of an adapter folder; `None` for any other folder."""
    base = adapter_settings(path).get("base_model_name_or_path")
    if base is None:
        return None
    beside = os.path.normpath(Path(path).resolve() / base)
    if base and Path(beside).is_dir():
        return beside
    return _moved_base(Path(path), base) if os.path.isabs(base) or base.startswith("..") else base


def _moved_base(folder: Path, base: str) -> str:
    """An adapter's base that was moved with it: the embedded model, one that is beside it in the
    folder of a team, or from the config of the run."""
    if portable_name(base) == NAME:
        return NAME
    places = [folder.absolute(), *folder.absolute().parents]
    for moved in (place / BASES / Path(base).name for place in places[:3]):
        if moved.is_dir():
            return str(moved)
    files = [place / "config.yaml" for place in places[1:5]]
    config_file = next((file for file in files if file.is_file()), None)
    if config_file is None:
        return base
    config = load_config(config_file)
    named = [config.model.model_name_or_path, *(p.model for p in config.policies.values())]
    alike = (n for n in named if n and Path(n).is_dir() and Path(n).name == Path(base).name)
    return next(alike, base)


def import_peft() -> Any:
    """Imports the peft library; a `ModelError` if it is not installed."""
    try:
        import peft
    except ImportError as error:
        raise ModelError("LoRA needs the peft library: pip install 'mrlm[lora]'") from error
    return peft


def _require_folder(path: str) -> None:
    """Raises if an explicit path is not a model folder; anything else may be a hub id."""
    explicit = path.startswith((".", "/", "~")) or path.count("/") > 1
    if explicit and not Path(path).expanduser().is_dir():
        raise ModelError(
            f"{path}: the folder does not exist; give a folder with config.json, or a hub id"
        )
    if Path(path).is_dir() and not is_model(Path(path)):
        raise ModelError(
            f"{path}: the folder has no config.json; give a folder with a Hugging Face model"
        )


def set_checkpointing(model: Any, on: bool) -> None:
    """Turns activation checkpointing on or off, also in older library versions.

    The library's hook on the embedding, which makes its output require gradients, is removed unless
    it was present before: only reentrant checkpointing needs it, and a model with hooks cannot use
    the fast path.
    """
    kind = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    if not on:
        getattr(model, f"{kind}_checkpointing_disable")()
        return
    hooked = _unhooked(model)
    getattr(model, f"{kind}_checkpointing_enable")({"use_reentrant": False})
    _unhooked(model)
    if hooked:
        model.enable_input_require_grads()


def _unhooked(model: Any) -> bool:
    """Removes that hook; returns whether there was one."""
    has_hook = hasattr(model, "_require_grads_hook")
    if has_hook:
        model.disable_input_require_grads()
    return has_hook


def is_model(folder: Path) -> bool:
    """Whether a folder holds a model or an adapter."""
    return any((folder / name).is_file() for name in ("config.json", ADAPTER_CONFIG))


def model_folders(folder: Path) -> dict[str, str]:
    """policy -> its folder, where several were saved; empty for the folder of a single one."""
    if is_model(folder):
        return {}
    return {path.name: str(path) for path in sorted(folder.iterdir()) if is_model(path)}
