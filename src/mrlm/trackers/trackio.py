"""Trackio, a local-first tracker; a resumed run continues under the same name."""

import os
import secrets
from pathlib import Path
from typing import Any, ClassVar

from mrlm.tracking.media_tracker import MediaTracker

PROJECT = "mrlm"
"""Project of the runs unless `TRACKIO_PROJECT` says otherwise."""


class Trackio(MediaTracker):
    """Logs to Trackio. Runs are found again by their names there, so each gets one of its own:
    `<run name>-<six hexadecimal digits>`."""

    library: ClassVar[str] = "trackio"

    def __init__(
        self, folder: Path, run_name: str, config: dict[str, Any], state: dict[str, Any] | None
    ) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        self._name = f"{run_name}-{secrets.token_hex(3)}" if state is None else state["name"]
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=self._name,
            config=config,
            resume="never" if state is None else "allow",
        )

    def alert(self, title: str, text: str) -> None:
        self._run.alert(title=title, text=text)

    def state(self) -> dict[str, Any]:
        return {"name": self._name}


PLUGIN = Trackio
