"""The server of `mrlm view`: the page of a run that follows it while it is written. The standard
library only; nothing but the viewer's modules and the record of the runs is served."""

import ssl
from pathlib import Path
from urllib.parse import quote

from mrlm.core.errors import ConfigError
from mrlm.viewer.access import AccessCheck
from mrlm.viewer.folders import runs_in
from mrlm.viewer.following import LISTED
from mrlm.viewer.playing import Player, PlayFunction
from mrlm.viewer.routes import View, ViewHTTP


class ViewServer:
    """Serves the runs of a folder in threads of this process. `check_exposure` of the other servers
    decides who may listen where, before this one is made.

    Args:
        folder: a run folder, or a folder of several.
        play: plays branches of an episode.
        host: address to listen on.
        port: its port; 0: a free one.
        token: the token that requests need, if any.
        tls: certificate and key, if connections are encrypted.
        listed: bytes of a file of episodes that are listed when a page opens.

    Raises:
        ConfigError: the folder does not exist, or the port is not available.
    """

    def __init__(
        self,
        folder: Path,
        play: PlayFunction,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        tls: tuple[Path, Path] | None = None,
        listed: int = LISTED,
    ) -> None:
        runs_in(folder)
        try:
            self._http = ViewHTTP(host, port)
        except OSError as error:
            raise ConfigError(
                f"port {port} of {host} cannot be opened: {error.strerror}; choose another with "
                "--port"
            ) from error
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            # the handshake is for the connection's own thread
            self._http.socket = context.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port: int = self._http.server_address[1]
        access = AccessCheck(host, self.port, token, "http" if tls is None else "https")
        self.view: View = View(folder, access, Player(play), listed)
        self._http.view = self.view

    @property
    def url(self) -> str:
        """The address to open."""
        access = self.view.access
        return f"{access.origin}/{'' if access.token is None else f'?token={quote(access.token)}'}"

    def run(self) -> None:
        """Serves until `stop` is called, or the process is interrupted."""
        try:
            self._http.serve_forever(poll_interval=0.2)
        finally:
            self.view.stopping.set()
            self._http.server_close()

    def stop(self) -> None:
        """Ends `run`, which another thread has called."""
        self._http.shutdown()
