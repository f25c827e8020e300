"""The settings of a process that trains beside others: one thread, no network, no progress bars."""

from __future__ import annotations

import os

SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",
}


def use_one_thread() -> None:
    """Set what is not set already; before torch is imported."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
