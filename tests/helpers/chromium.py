"""A headless Chromium over its debugging pipe: the standard library only, no port, no package."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--remote-debugging-pipe"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
MISSING = "Chromium is not installed; on Debian: apt-get install chromium-headless-shell"


def chromium() -> str | None:
    """The path of a Chromium, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A page in a browser of its own."""

    def __init__(self) -> None:
        path = chromium()
        assert path, MISSING
        self.home = tempfile.mkdtemp(prefix="chromium-")
        pairs = os.pipe(), os.pipe()
        # the browser reads from 3 and writes to 4: away from there first
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in (pairs[0][0], pairs[1][1])]
        null = os.open(os.devnull, os.O_WRONLY)
        arguments = [path, *FLAGS, f"--user-data-dir={self.home}", "about:blank"]
        moves = [(ends[0], 3), (ends[1], 4), (null, 1), (null, 2)]
        self.pid = os.posix_spawn(
            path,
            arguments,
            os.environ,
            setpgroup=0,
            file_actions=[(os.POSIX_SPAWN_DUP2, old, new) for old, new in moves],
        )
        for fd in (pairs[0][0], pairs[1][1], null, *ends):
            os.close(fd)
        self.into, self.out = pairs[0][1], pairs[1][0]
        self.buffer, self.last, self.session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        found = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = found["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(domain + ".enable")
        self.size(1280)
        self.theme(dark=False)

    def read(self, timeout: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            if not select.select([self.out], [], [], timeout)[0]:
                raise TimeoutError("no message from Chromium")
            self.buffer += os.read(self.out, 1 << 20)
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def send(self, method: str, timeout: float = 60, **params: Any) -> dict[str, Any]:
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.into, data) :]
        while True:
            answer = self.read(timeout)
            if answer.get("id") == self.last:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def size(self, width: int, height: int = 900) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **metrics)

    def theme(self, dark: bool) -> None:
        value = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[value])

    def open(self, path: Path, place: str = "") -> None:
        """Open a file and wait until the page is ready."""
        self.send("Page.navigate", url="about:blank")
        self.events.clear()
        self.send("Page.navigate", url=f"{path.resolve().as_uri()}#{place}")
        self.wait("document.documentElement?.dataset.ready")

    def go(self, place: str) -> None:
        """Go to a place in the page and wait until it is shown."""
        self.js(f"location.hash = {json.dumps(place)}")
        self.wait("document.documentElement.dataset.page === location.hash")

    def js(self, expression: str) -> Any:
        answer = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until an expression is true."""
        while not self.js(expression):
            time.sleep(0.01)

    def key(self, key: str, code: int = 0) -> None:
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        same = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", **same, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **same)

    def picture(self, path: Path, whole: bool = False) -> None:
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(data["data"]))

    def problems(self) -> list[str]:
        """Errors and warnings of the console, exceptions, violations of the policy."""
        self.js("1")
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                found.append(details.get("exception", {}).get("description") or details["text"])
            elif event["method"] == "Runtime.consoleAPICalled":
                if params["type"] in ("error", "warning", "assert"):
                    found.append(str([each.get("value") for each in params["args"]]))
            elif event["method"] == "Log.entryAdded":
                entry = params["entry"]
                found += [entry["text"]] if entry["level"] in ("error", "warning") else []
        return found

    def requests(self) -> list[str]:
        """Addresses that the page requested, but those of itself."""
        self.js("1")
        sent = [e for e in self.events if e["method"] == "Network.requestWillBeSent"]
        urls = [event["params"]["request"]["url"] for event in sent]
        return [url for url in urls if not url.startswith(("data:", "file:", "about:"))]

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.send("Browser.close", timeout=5)
        os.close(self.into)
        os.close(self.out)
        end = time.monotonic() + 5
        while not os.waitpid(self.pid, os.WNOHANG)[0]:
            if time.monotonic() > end:
                os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                break
            time.sleep(0.02)
        shutil.rmtree(self.home, ignore_errors=True)
