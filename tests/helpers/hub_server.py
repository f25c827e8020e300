"""A small hub: the requests of `HfApi.create_repo`, `upload_folder` and `snapshot_download`, with
repositories of regular files in memory."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "hf_of_the_small_hub"


class Hub:
    """Repositories by name, each path -> content; and all that clients have sent."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.commits: list[str] = []
        self.received: list[bytes] = []
        self.url = ""

    def sha(self, repository: str) -> str:
        files = sorted(self.repositories[repository].items())
        return hashlib.sha1(repr(files).encode()).hexdigest()

    def commit(self, repository: str, lines: list[dict[str, Any]]) -> None:
        files = self.repositories[repository]
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
            elif line["key"] == "header":
                self.commits.append(value["summary"])
            else:
                raise ValueError(line["key"])


def oid(content: bytes) -> str:
    """The id that git gives a file."""
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Answers as the hub does."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _send(self, status: int, body: Any = None, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _allowed(self) -> bool:
        if self.headers.get("Authorization") == f"Bearer {TOKEN}":
            return True
        self._send(401, {"error": "Invalid username or password."})
        return False

    def _known(self, repository: str) -> dict[str, bytes] | None:
        files = self.hub.repositories.get(repository)
        if files is None:
            self._send(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        return files

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.hub.received.append(body)
        if not self._allowed():
            return
        path = unquote(urlsplit(self.path).path)
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            if name in self.hub.repositories:
                said = "You already created this model repo"
                self._send(409, {"error": said, "url": f"{self.hub.url}/{name}"})
                return
            self.hub.repositories[name] = {}
            self.hub.private[name] = asked.get("visibility") == "private"
            self._send(200, {"url": f"{self.hub.url}/{name}", "name": name})
            return
        if path == "/api/validate-yaml":
            _, front, _ = json.loads(body)["content"].split("---\n", 2)
            known = isinstance(yaml.safe_load(front), dict)
            self._send(200 if known else 400, {"errors": [], "warnings": []})
            return
        _, api, kind, owner, name, job, revision = path.split("/")
        repository = f"{owner}/{name}"
        files = self._known(repository)
        if files is None:
            return
        assert (api, kind, revision) == ("api", "models", "main"), path
        if job == "preupload":
            asked = [each["path"] for each in json.loads(body)["files"]]
            same = {each: {"oid": oid(files[each])} for each in asked if each in files}
            rows = [
                {"path": each, "uploadMode": "regular", "shouldIgnore": False, **same.get(each, {})}
                for each in asked
            ]
            self._send(200, {"files": rows})
        elif job == "commit":
            self.hub.commit(repository, [json.loads(line) for line in body.splitlines()])
            sha = self.hub.sha(repository)
            url = f"{self.hub.url}/{repository}/commit/{sha}"
            self._send(200, {"commitUrl": url, "commitOid": sha, "success": True})
        else:
            self._send(404, {"error": path})

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        parts = path.split("/")
        if parts[1:3] == ["api", "models"]:
            repository = "/".join(parts[3:5])
            files = self._known(repository)
            if files is None:
                return
            if parts[5:6] == ["tree"]:
                rows = [
                    {"type": "file", "path": name, "size": len(content), "oid": oid(content)}
                    for name, content in files.items()
                ]
                self._send(200, rows)
            else:
                sha = self.hub.sha(repository)
                names = [{"rfilename": name} for name in files]
                about = {"id": repository, "modelId": repository, "sha": sha, "siblings": names}
                self._send(200, about | {"private": self.hub.private[repository]})
            return
        repository, name = "/".join(parts[1:3]), "/".join(parts[5:])
        files = self._known(repository)
        if files is None:
            return
        if name not in files:
            self._send(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
            return
        etag = f'"{oid(files[name])}"'
        self._send(200, files[name], ETag=etag, X_Repo_Commit=self.hub.sha(repository))

    do_HEAD = do_GET


@contextmanager
def small_hub() -> Iterator[Hub]:
    """A hub for a while, on a port of this machine."""
    hub = Hub()
    kind = type("Handler", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
