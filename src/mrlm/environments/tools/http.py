"""JSON requests to a server named by the user, without redirects and with limits on the size of the
reply and on the total time."""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from mrlm.core.errors import EpisodeError

MAX_BYTES = 4 << 20
"""Maximum size of a reply in bytes."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A handler that turns redirects into errors, as they may lead into a private network."""

    def redirect_request(self, req: Any, fp: Any, code: int, *_: Any) -> None:
        raise urllib.error.HTTPError(req.full_url, code, "it redirects", req.headers, fp)


def fetch_json(url: str, body: Any, timeout: float, query: Mapping[str, str] | None = None) -> Any:
    """The JSON reply of a server to a POST of `body`, or to a GET if it is `None`.

    Args:
        url: `http` or `https`; it comes from the user, never from a model.
        body: value sent as JSON.
        timeout: total time limit in seconds.

    Raises:
        EpisodeError: the server cannot be reached, redirects, or its reply is an error, too large,
            too late or not JSON.
    """
    if query:
        url = f"{url}?{urllib.parse.urlencode(query, errors='replace')}"
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    request = urllib.request.Request(url, data, headers)
    opener = urllib.request.build_opener(_NoRedirect)
    end = time.monotonic() + timeout
    try:
        with opener.open(request, timeout=timeout) as reply:
            return json.loads(_read(reply, end))
    except urllib.error.HTTPError as error:
        error.close()
        raise EpisodeError(f"{_plain(url)} answered {error.code} ({error.reason})") from error
    except (OSError, ValueError, RecursionError) as error:
        raise EpisodeError(f"{_plain(url)} did not answer: {error}") from error


def _read(reply: Any, end: float) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := reply.read1(65_536):
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        if time.monotonic() > end:
            raise TimeoutError("it took too long")
    return b"".join(parts)


def _plain(url: str) -> str:
    return url.partition("?")[0]
