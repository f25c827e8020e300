"""TensorBoard event files in the run folder, through tensorboardX."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mrlm.tracking.completions import Table, markdown
from mrlm.tracking.payoffs import Payoffs
from mrlm.tracking.run_log import Tracker


class TensorBoard(Tracker):
    """Writes scalars, completions and histograms to `<run folder>/tensorboard`."""

    library: ClassVar[str] = "tensorboardX"

    def __init__(
        self, folder: Path, run_name: str, config: dict[str, Any], state: dict[str, Any] | None
    ) -> None:
        from tensorboardX import SummaryWriter

        resumed = None if state is None else state["step"] + 1
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=resumed)
        self._step = 0 if state is None else state["step"]

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._step = step

    def samples(
        self, step: int, name: str, table: Table, numbers: Mapping[str, Sequence[float]]
    ) -> None:
        self._writer.add_text(f"{name}/completions", markdown(table), step)
        for key, values in numbers.items():
            self._writer.add_histogram(f"{name}/{key}", np.asarray(values), step)

    def payoffs(self, step: int, payoffs: Payoffs) -> None:
        """Write a picture, encoded here (the library's own encoder needs another package), and a
        table."""
        from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        height, width, _ = payoffs.pixels().shape
        image = Summary.Image(height=height, width=width, encoded_image_string=payoffs.png())
        summary = Summary(value=[Summary.Value(tag="payoffs", image=image)])
        self._writer._get_file_writer().add_summary(summary, step)
        self._writer.add_text("payoffs", payoffs.markdown(), step)

    def state(self) -> dict[str, Any]:
        return {"step": self._step}

    def close(self) -> None:
        self._writer.close()


PLUGIN = TensorBoard
