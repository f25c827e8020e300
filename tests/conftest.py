"""What tests share: the embedded model, and a tokenizer and engine that need none."""

import gc
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from chromium import Browser
from commands import run  # noqa: F401
from forking import Launcher
from logged import unknown

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.pop("MRLM_MODEL", None)


SYSTEM = Path(__file__).parent / "system"
NUMBERS = itertools.count()
"""Numbers of the tests' folders."""
TIME_LIMIT = 3600
"""Seconds after which a test hangs. It ends no test that would end by itself, and nothing else
limits the time of one: no outcome depends on what else the machine does."""


gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """Tests are about the CPU wherever they run; only `-m gpu` sees the GPUs."""
    if "gpu" not in config.getoption("markexpr"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_finish() -> None:
    """What has been imported stays until the end, and garbage is little: looking for it again and
    again took a tenth of the time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make test ARGS=--backwards`: no test may need another one before it."""
    parser.addoption("--backwards", action="store_true", help="run the last test first")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The order that is asked for, and the mark of the tests of `tests/system`. A test that hangs
    fails by name, with the stacks of its threads."""
    for item in items:
        if item.path.is_relative_to(SYSTEM):
            item.add_marker(pytest.mark.system)
    if "real" not in config.getoption("markexpr"):
        real = [item for item in items if item.get_closest_marker("real") is not None]
        items[:] = [item for item in items if item not in real]
        config.hook.pytest_deselected(items=real)
    if config.getoption("backwards"):
        items.reverse()
    if not config.pluginmanager.hasplugin("timeout"):
        return  # environments for other libraries do not have it
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIME_LIMIT))


@pytest.fixture(scope="session")
def tiny_path() -> str:
    """Folder of the embedded model."""
    from mrlm import default_model

    return default_model()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser of its own for each file."""
    found = Browser()
    yield found
    found.close()


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


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder of the test's own. Pytest's fixture of this name reads all folders that there are to
    number a new one, and keeps a link to the newest of every name."""
    name = re.sub(r"\W", "_", request.node.name)[:40]
    path = tmp_path_factory.getbasetemp() / f"{name}_{next(NUMBERS)}"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in an empty folder of its own, so that outputs/ goes there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """What a test draws and computes does not depend on the tests before it."""
    import random

    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.default_generator.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


@pytest.fixture(autouse=True)
def same_loggers() -> Iterator[None]:
    """What a test logs does not depend on the tests before it, some of which run programs that set
    levels."""
    import logging

    levels = {name: logging.getLogger(name).level for name in ("mrlm", "transformers")}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture(scope="session", autouse=True)
def every_number_is_known() -> Iterator[None]:
    """A run may log only what is in the table of metrics."""
    from mrlm.tracking.run_log import RunLog

    log = RunLog.log

    def checked(self: RunLog, step: int, metrics: Mapping[str, float | None]) -> None:
        assert not unknown(metrics), f"tracking/metrics.json has no row for {unknown(metrics)}"
        log(self, step, metrics)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunLog, "log", checked)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """What tests write must outlive processes, which the page cache does, but no loss of power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="module")
def sandbox() -> Any:
    """Where programs run, as this machine allows."""
    from mrlm.sandbox import SandboxUnavailableError, open_sandbox

    try:
        return open_sandbox()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """Starts processes that need not import anything heavy."""
    made = Launcher()
    yield made
    made.close()


@pytest.fixture(scope="session")
def gpt2_path(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> str:
    """A folder with a tiny model of another family: learned positions, no padding token, a template
    without marks."""
    import copy

    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(1)
    own = copy.deepcopy(tokenizer)
    own.pad_token = None
    own.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + "
        "'<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    sizes = GPT2Config(
        vocab_size=len(own),
        n_positions=2048,
        n_embd=64,
        n_layer=2,
        n_head=2,
        eos_token_id=own.eos_token_id,
    )
    GPT2LMHeadModel(sizes).save_pretrained(folder)
    own.save_pretrained(folder)
    return str(folder)
