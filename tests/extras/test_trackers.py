"""The trackers with their real libraries, without a network."""

from pathlib import Path
from typing import Any

import pytest

from mrlm.tracking.payoffs import Payoffs
from mrlm.tracking.run_log import RunLog

PAYOFFS = Payoffs(["p@0", "p@3"], [[None, 0.25], [0.75, 1.0]])


def logged(folder: Path, tracker: str) -> Any:
    """Logs a step, and returns the tracker."""
    log = RunLog(folder, "run", {"training": {}}, 3, [tracker])
    log.log(1, {"loss": 0.5})
    log.payoffs(1, PAYOFFS)
    made = log._trackers[tracker]  # it is dropped where a call fails
    log.close()
    return made


def test_tensorboard_shows_the_picture(tmp_path: Path) -> None:
    module = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(module).EventAccumulator(str(tmp_path / "tensorboard"))
    logged(tmp_path, "tensorboard")
    accumulator.Reload()
    (image,) = accumulator.Images("payoffs")
    assert image.step == 1 and (image.width, image.height) == (168, 84)
    assert image.encoded_image_string == PAYOFFS.png()


def test_wandb_takes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb.sdk")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logged(tmp_path, "wandb")
    (table,) = tmp_path.glob("wandb/offline-run*/files/media/table/payoffs*.json")
    assert "p@3" in table.read_text() and "0.75" in table.read_text()


def test_trackio_takes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    logged(tmp_path, "trackio")
    assert any(b"p@3" in path.read_bytes() for path in _files(tmp_path / "trackio"))


def test_mlflow_has_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlflow").as_uri())
    tracker = logged(tmp_path, "mlflow")
    client = mlflow.MlflowClient()
    names = {each.path for each in client.list_artifacts(tracker._id, "payoffs")}
    assert names == {"payoffs/000001.json", "payoffs/000001.png"}


ODD = ("a//b", "../up", "dot/.", "/root", "a/../b", "50 %", "größe", "x" * 300, "a=b;c", "x/")
"""Names that components of a reward may have."""


def test_mlflow_takes_every_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlflow").as_uri())
    log = RunLog(tmp_path, "run", {"training": {}}, 3, ["mlflow"])
    log.log(1, {f"reward/{name}": float(number) for number, name in enumerate(ODD)})
    tracker = log._trackers["mlflow"]  # it was not dropped
    log.close()
    found = mlflow.MlflowClient().get_run(tracker._id)
    assert sorted(found.data.metrics.values()) == [float(n) for n in range(len(ODD))]
    assert found.info.status == "FINISHED"


def test_a_tracker_that_is_dropped_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlflow").as_uri())
    log = RunLog(tmp_path, "run", {"training": {}}, 3, ["mlflow"])
    tracker = log._trackers["mlflow"]
    monkeypatch.setattr(tracker, "log", lambda step, metrics: 1 / 0)
    log.log(1, {"loss": 0.5})
    assert log._trackers == {}
    assert mlflow.MlflowClient().get_run(tracker._id).info.status == "FINISHED"
    log.close()


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
