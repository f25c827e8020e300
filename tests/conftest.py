"""What tests share: the embedded model, and a tokenizer and engine that need none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.pop("MRLM_MODEL", None)


@pytest.fixture(scope="session")
def tiny_path() -> str:
    """Folder of the embedded model."""
    from mrlm import default_model

    return default_model()


@pytest.fixture(scope="session")
def tokenizer(tiny_path: str) -> Any:
    """Tokenizer of the embedded model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_path)


@pytest.fixture
def model(tiny_path: str) -> Any:
    """A fresh copy of the embedded model."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(tiny_path)


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in an empty folder of its own, so that outputs/ goes there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
