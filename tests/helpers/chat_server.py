"""A server that speaks chat completions over real sockets, and fails on request."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

JSON = dict[str, Any]


@dataclass
class Fault:
    """What goes wrong with a call: a status, an own body, a pause before it, or a cut line."""

    status: int = 200
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    pause: float = 0.0
    cut: bool = False

    @classmethod
    def saying(cls, status: int, message: str, code: str | None = None, **headers: str) -> "Fault":
        body = json.dumps({"error": {"message": message, "code": code}}).encode()
        return cls(status, body, {name.replace("_", "-"): text for name, text in headers.items()})


Answer = str | JSON | Fault


class ChatServer:
    """What was asked, when, and by how many at once."""

    def __init__(self, answer: Callable[[JSON, int], Answer]) -> None:
        self.answer = answer
        self.bodies: list[JSON] = []
        self.keys: list[str] = []
        self.times: list[float] = []
        self.busy = self.most_busy = 0
        self.lock = threading.Lock()
        self.url = ""

    def take(self, body: JSON, key: str) -> Answer:
        with self.lock:
            number = len(self.bodies)
            self.bodies.append(body)
            self.keys.append(key)
            self.times.append(time.monotonic())
            self.busy += 1
            self.most_busy = max(self.most_busy, self.busy)
        try:
            return self.answer(body, number)
        finally:
            with self.lock:
                self.busy -= 1


def completion(text: str, body: JSON, **changes: Any) -> JSON:
    """The usual answer; a word is a token."""
    read = sum(len(message["content"].split()) for message in body["messages"])
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [choice | {"finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": read,
            "completion_tokens": len(text.split()),
            "total_tokens": read + len(text.split()),
        },
    } | changes


@contextmanager
def serving(answer: Callable[[JSON, int], Answer]) -> Iterator[ChatServer]:
    """A server on a free port, as long as the block lasts."""
    state = ChatServer(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            said = state.take(body, self.headers.get("authorization", ""))
            if isinstance(said, Fault):
                time.sleep(said.pause)
                if said.cut:
                    self.close_connection = True
                    return
                self.send(said.status, said.body or b"", said.headers)
                return
            found = said if isinstance(said, dict) else completion(said, body)
            self.send(200, json.dumps(found).encode(), {})

        def send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            try:
                self.send_response(status)
                named = {"content-type": "application/json", "content-length": str(len(body))}
                for name, value in (named | dict(headers)).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
            except OSError:  # nobody waits any more
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class QuietServer(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that hung up

    with QuietServer(("127.0.0.1", 0), Handler) as http:
        state.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
        thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield state
        finally:
            http.shutdown()
            thread.join()
