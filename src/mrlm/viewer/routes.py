"""The routes of the viewer's server: its pages and modules, the pieces of a run, rows of its
record, and `play`."""

import html
import json
import secrets
import socket
import ssl
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from mrlm.core.errors import ConfigError
from mrlm.record.files import episode_file, lines_of
from mrlm.record.reader import METRICS
from mrlm.record.tail import lines_from_end
from mrlm.record.vocabulary import VOCABULARY
from mrlm.viewer.access import AccessCheck, HTTPError
from mrlm.viewer.export import STATIC, import_map, shell
from mrlm.viewer.folders import runs_in, stages_of
from mrlm.viewer.following import RunFollower, checkpoints_of
from mrlm.viewer.listing import EpisodeList
from mrlm.viewer.playing import Player, PlayError, checked
from mrlm.viewer.source import ViewedStage

INTERVAL = 0.5
"""Seconds between two looks at the files of a run."""
QUIET = 5.0
"""Seconds without news after which a stream is checked."""
LONGEST = 1 << 20
"""Bytes of a request."""
MOST = 200
"""Threads from which connections are refused."""
TYPES = {".js": "text/javascript", ".css": "text/css"}
MODULES = {path.name: path for path in STATIC.iterdir() if path.suffix in TYPES}
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class View:
    """The objects that all requests share: the folder of a run, or of several; the checks of
    requests; what plays branches; the bytes of a file of episodes that are listed when a page
    opens; and an event that is set when the server stops."""

    folder: Path
    access: AccessCheck
    player: Player
    listed: int
    stopping: threading.Event = field(default_factory=threading.Event)


class ViewHTTP(ThreadingHTTPServer):
    """A server with a thread per connection; `view` is set before it runs."""

    view: View
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), ViewHandler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether a connection is accepted."""
        return threading.active_count() < MOST

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that ended is no news."""


class ViewHandler(BaseHTTPRequestHandler):
    """The routes."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "mrlm", ""
    timeout = 60
    server: ViewHTTP  # type: ignore[assignment]
    secure: ClassVar[str] = "default-src 'self'; base-uri 'none'; form-action 'none'; "

    # -- requests ----------------------------------------------------------------------------------

    def do_GET(self) -> None:
        """Answers a GET."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Answers a POST."""
        self._answer(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not printed."""

    def _answer(self, route: Callable[[], None]) -> None:
        access, path = self.server.view.access, urlsplit(self.path).path
        page = path.endswith("/") and self.command == "GET"
        try:
            access.check_site(self.headers, page)
            cookie = access.cookie_for(self.headers, self.path, page)
            if cookie is None:
                return route()
            self._send(303, "", "text/plain", {"Set-Cookie": cookie, "Location": path})
        except (HTTPError, ConfigError) as error:
            status = error.status if isinstance(error, HTTPError) else 404
            self._send(status, str(error), "text/plain")
            self.close_connection = True  # a body may not have been read
        except (ConnectionError, TimeoutError, ssl.SSLError):
            self.close_connection = True

    # -- routes ------------------------------------------------------------------------------------

    def _get(self) -> None:
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        path = address.path
        if path == "/favicon.ico":
            return self._send(204, "", "text/plain")
        if path.startswith("/static/"):
            return self._static(path.removeprefix("/static/"))
        if path == "/list":
            return self._json(_described(self.server.view.folder))
        run, name = self._run(path)
        if name == "":
            return self._page(run)
        if name == "events":
            return self._events(run, query.get("from", ""))
        if name == "rows":
            return self._rows(self._stage(run, query), query)
        if name == "vocabulary":
            return self._vocabulary(self._stage(run, query))
        raise HTTPError(404, "unknown address")

    def _run(self, path: str) -> tuple[Path | None, str]:
        """The run of an address and the rest of it; no run for the list of several."""
        folder = self.server.view.folder
        runs = runs_in(folder)
        first, _, rest = path.removeprefix("/").partition("/")
        if first != "runs":
            single = runs.get("", None if runs else folder)
            if single is None and path != "/":
                raise HTTPError(404, "unknown address")
            return single, path.removeprefix("/")
        name, slash, rest = rest.partition("/")
        run = runs.get(unquote(name))
        if run is None or not slash or name == "":
            raise HTTPError(404, "this run is not in the folder")
        return run, rest

    def _stage(self, run: Path | None, query: dict[str, str]) -> ViewedStage:
        stages = [] if run is None else stages_of(run, self.server.view.folder)
        for stage in stages:
            if stage.name == query.get("stage", ""):
                return stage
        raise HTTPError(404, "this stage is not in the run")

    def _page(self, run: Path | None) -> None:
        view, nonce = self.server.view, secrets.token_urlsafe(18)
        modules = import_map("served.js", lambda path: f"/static/{path.name}")
        policy = (
            f"{self.secure}script-src 'self' 'nonce-{nonce}'; connect-src 'self'; "
            "object-src 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'"
        )
        head = [
            '<link rel="stylesheet" href="/static/style.css">',
            f'<meta name="form" content="{html.escape(view.access.form)}">',
        ]
        folder = view.folder if run is None else run
        start = "viewer/runs.js" if run is None else "viewer/app.js"
        text = shell(folder.resolve().name, nonce, modules, head, start)
        self._send(200, text, "text/html", {"Content-Security-Policy": policy})

    def _static(self, name: str) -> None:
        path = MODULES.get(name)
        if path is None:
            raise HTTPError(404, "unknown address")
        self._send(200, path.read_text(encoding="utf-8"), TYPES[path.suffix])

    def _rows(self, stage: ViewedStage, query: dict[str, str]) -> None:
        """Rows of a part of the file of episodes."""
        try:
            at, size, first, count = (int(query[key]) for key in ("at", "size", "first", "count"))
        except (KeyError, ValueError) as error:
            raise HTTPError(400, "at, size, first and count are whole numbers") from error
        path = episode_file(stage.folder)
        try:
            if path is None or min(at, size, first, count) < 0 or size > path.stat().st_size - at:
                raise EOFError
            lines = lines_of(path, at, size)[first : first + count]
            rows = [json.loads(line) for line in lines]
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise HTTPError(410, "the record was written again; reload the page") from error
        explained = stage.explained
        for row in rows:
            if (key := (row["id"], row.get("step") or 0)) in explained:
                row["explained"] = explained[key]
        self._json(rows)

    def _vocabulary(self, stage: ViewedStage) -> None:
        """The bytes of all tokens, compressed as they are."""
        path = stage.folder / VOCABULARY
        if not path.is_file():
            return self._json({"policies": {}, "pieces": []})
        self._send(200, path.read_bytes(), "application/json", {"Content-Encoding": "gzip"})

    def _events(self, run: Path | None, begin: str) -> None:
        """The pieces of a run, as server-sent events."""
        view = self.server.view
        if run is None:
            raise HTTPError(404, "unknown address")
        self.close_connection = True
        self._head(200, "text/event-stream", {"Connection": "close"})
        self.wfile.write(b"retry: 1000\n\n")
        position = self.headers.get("Last-Event-ID") or begin
        follower, quiet = RunFollower(run, view.folder, position, view.listed), 0.0
        while not view.stopping.is_set():
            sent = False
            try:
                for kind, piece in follower.pieces():
                    self._event(kind, piece, follower.position())
                    sent = True
            except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
                if isinstance(error, ConnectionError | TimeoutError | ssl.SSLError):
                    raise
                return self._event("problem", {"text": f"{run} cannot be read: {error!r}"})
            quiet = 0.0 if sent else quiet + INTERVAL
            if quiet >= QUIET:
                self.wfile.write(b":\n\n")  # an error here ends the stream of a page that is gone
                quiet = 0.0
            if not follower.waiting:
                view.stopping.wait(INTERVAL)

    def _event(self, kind: str, piece: dict[str, Any], position: str | None = None) -> None:
        event_id = "" if position is None else f"id: {position}\n"
        self.wfile.write(f"event: {kind}\n{event_id}data: {json.dumps(piece)}\n\n".encode())

    def _post(self) -> None:
        run, name = self._run(urlsplit(self.path).path)
        if name != "play":
            raise HTTPError(404, "unknown address")
        self.server.view.access.check_form(self.headers)
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length[:20]) > LONGEST:
            raise HTTPError(413, f"the request needs a length of at most {LONGEST} bytes")
        try:
            request = json.loads(self.rfile.read(int(length)))
        except ValueError as error:
            raise HTTPError(400, "the request is not JSON") from error
        self._play(run, request)

    def _play(self, run: Path | None, request: Any) -> None:
        """Plays branches; blanks are sent before the answer while they are played."""
        name = request.pop("stage", "") if isinstance(request, dict) else ""
        stage = self._stage(run, {"stage": name})
        self.close_connection = True
        self._head(200, "application/json", {"Connection": "close"})

        def beat() -> None:
            self.wfile.write(b" ")
            if self.server.view.stopping.is_set():
                raise ConnectionAbortedError

        try:
            fields = checked(request, checkpoints_of(stage.folder))
            rows = self.server.view.player.branches(stage.folder, fields, beat)
            listing = EpisodeList()
            for row in rows:
                listing.add(stage.name, row, of=fields["id"])
            answer = {"rows": rows, "list": listing.record()}
        except PlayError as error:
            answer = {"error": str(error)}
        self.wfile.write(json.dumps(answer).encode())

    # -- answers -----------------------------------------------------------------------------------

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value), "application/json")

    def _send(
        self, status: int, body: str | bytes, kind: str, headers: dict[str, str] | None = None
    ) -> None:
        data = body.encode("utf-8", "replace") if isinstance(body, str) else body
        self._head(status, kind, (headers or {}) | {"Content-Length": str(len(data))})
        self.wfile.write(data)

    def _head(self, status: int, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        for name, value in ({"Content-Security-Policy": self.secure} | HEADERS | headers).items():
            self.send_header(name, value)
        self.end_headers()


def _described(folder: Path) -> list[dict[str, Any]]:
    """The runs of a folder: the newest first, with the last row of their metrics."""
    runs = []
    for name, path in runs_in(folder).items():
        stages = stages_of(path, folder)
        files = [stage.folder / METRICS for stage in stages]
        written = [file for file in files if file.is_file()]
        last = _last_row(written[-1]) if written else {}
        changed = max((file.stat().st_mtime for file in written), default=0.0)
        runs.append({"name": name, "stages": len(stages), "changed": changed, "last": last})
    return sorted(runs, key=lambda entry: -entry["changed"])


def _last_row(path: Path) -> dict[str, Any]:
    """Step and rewards of the last whole line."""
    whole = (line for _, line in lines_from_end(path) if line.endswith(b"\n"))
    try:
        row = json.loads(next(whole, b"{}"))
    except ValueError:
        return {}
    return {key: row.get(key) for key in ("step", "reward/mean", "eval/reward/mean")}
