"""`mrlm view`: shows a run in the browser, also while it is written."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mrlm.cli._options import refuse
from mrlm.cli.serve import TOKEN


def view(
    run: Path,
    port: int = 0,
    host: str = "127.0.0.1",
    token: str | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    text: bool = False,
) -> None:
    """Show a run, or the runs of a folder, in the browser; the page updates while training runs."""
    if text:
        from mrlm.cli.look import look

        names = {"port": port or None, "host": host != "127.0.0.1", "token": token}
        refuse("is for a page; remove it or --text", **names, tls_cert=tls_cert, tls_key=tls_key)
        return look(run)
    from mrlm.serving.protocol.security import check_exposure, server_credentials
    from mrlm.tracking.console import printable
    from mrlm.viewer.server import ViewServer

    shared = os.environ.get(TOKEN) if token is None else token
    check_exposure(host, shared, tls_cert is not None)
    server_credentials(tls_cert, tls_key, None)  # a mistake in the files is one clear error
    pair = None if tls_cert is None or tls_key is None else (tls_cert, tls_key)
    server = ViewServer(run, play_branches, host, port, shared, pair)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(printable(f"{run}: {server.url} (Ctrl-C ends)"), flush=True)
    try:
        server.run()
    except KeyboardInterrupt:
        return


def play_branches(run: Path, episode: str, **request: Any) -> Sequence[Any]:
    """Plays an episode again from one of its turns."""
    from mrlm.replays.play_from import play_from

    return play_from(run, episode, **request)
