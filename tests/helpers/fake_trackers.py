"""Trackers that note what they are sent."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mrlm.tracking.run_log import RunLog


def open_log(folder: Path, **more: Any) -> RunLog:
    return RunLog(folder, "run", {"training": {"seed": 0}}, 10, **more)


FAKE = """
import types
calls = []
def login(prompt=True, verify=True): return True
class _Run:
    def __init__(self, id): self.id = id; self.info = types.SimpleNamespace(run_id=id)
    def log(self, metrics, step=None): calls.append(("log", metrics, step))
    def finish(self): calls.append(("finish",))
def init(**words): calls.append(("init", words)); return _Run(words.get("id") or "new-id")
class _Metric:
    def __init__(self, key, value, timestamp, step):
        assert timestamp > 1e12
        self.key, self.value, self.step = key, value, step
class Histogram:
    def __init__(self, sequence): self.numbers = list(sequence)
class Table:
    def __init__(self, columns, data): self.columns, self.data = columns, data
class _Param:
    def __init__(self, key, value): assert isinstance(value, str); self.key, self.value = key, value
entities = types.SimpleNamespace(Metric=_Metric, Param=_Param)
class MlflowClient:
    def get_experiment_by_name(self, name): return None
    def create_experiment(self, name): calls.append(("experiment", name)); return "7"
    def create_run(self, experiment_id, run_name=None):
        calls.append(("init", {"name": run_name, "experiment": experiment_id}))
        return _Run("new-id")
    def update_run(self, run_id, status=None):
        calls.append(("init", {"id": run_id, "status": status}))
    def log_batch(self, run_id, metrics=(), params=()):
        assert run_id == "new-id" and len(params) <= 100
        if params: calls.append(("params", {each.key: each.value for each in params}))
        for each in metrics: calls.append(("log", {each.key: each.value}, each.step))
    def log_dict(self, run_id, dictionary, artifact_file):
        assert run_id == "new-id"
        calls.append(("dict", dictionary, artifact_file))
    def log_artifact(self, run_id, local_path, artifact_path):
        calls.append(("artifact", open(local_path, "rb").read(), artifact_path))
    def set_terminated(self, run_id): calls.append(("finish",))
"""


@pytest.fixture
def fake(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """A module of the shape of a tracker's library, that writes down how it is called."""
    (tmp_path / f"{request.param}.py").write_text(FAKE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, request.param, raising=False)
    yield importlib.import_module(request.param)
    sys.modules.pop(request.param, None)
