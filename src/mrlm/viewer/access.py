"""Requests that the viewer's server lets in: those of its own pages, from people with its token."""

import hmac
import ipaddress
import secrets
import socket
from email.message import Message
from urllib.parse import parse_qs, urlsplit

from mrlm.core.addresses import host_and_port, is_loopback


class HTTPError(Exception):
    """An answer that is a status and a sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status: int = status


class AccessCheck:
    """The checks of requests to a server on a host and port, with a token that they need, if any.
    Browsers show the token once, in the address, and then have a cookie."""

    def __init__(self, host: str, port: int, token: str | None, scheme: str) -> None:
        self.token: str | None = token
        self.origin: str = f"{scheme}://{host_and_port(host, port)}"
        self.form: str = secrets.token_urlsafe(18)
        """The value that a page sends with a POST."""
        self._cookie = f"mrlm-view-{port}={secrets.token_urlsafe(18)}"
        self._scheme, self._port, self._local = scheme, port, is_loopback(host)
        host_names = (
            ("127.0.0.1", "[::1]") if self._local else (socket.gethostname(), socket.getfqdn())
        )
        names = ("localhost", host_and_port(host, 0).removesuffix(":0"), *host_names)
        self._names = {name.lower() for name in names}

    def check_site(self, headers: Message, page: bool) -> None:
        """Refuses requests that pages of other sites have sent; to a `page` they may link. Raises
        `HTTPError`: it is one of them."""
        host = headers.get("Host", "")
        name = host.removesuffix(f":{self._port}").lower()
        # a name of another site may lead to this machine (DNS rebinding)
        if not (name in self._names or (not self._local and _is_ip(name))):
            raise HTTPError(403, f"this server does not answer to the name {host[:100]!r}")
        if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not page:
            raise HTTPError(403, "other sites are not let in")

    def check_form(self, headers: Message) -> None:
        """Refuses a POST that no page of this server has sent. Raises `HTTPError`: it is one."""
        origin = f"{self._scheme}://{headers.get('Host', '')}"
        if headers.get("Origin") != origin or not _same(headers.get("X-MRLM-Form", ""), self.form):
            raise HTTPError(403, "only the page itself can play; reload it")

    def cookie_for(self, headers: Message, address: str, page: bool) -> str | None:
        """Refuses requests without the token. The cookie that the browser is to keep, if the
        address (path and query) of a `page` has the token; `None` if the request is let in. Raises
        `HTTPError`: the token is missing or wrong."""
        if self.token is None:
            return None
        scheme, _, credentials = headers.get("Authorization", "").partition(" ")
        cookies = headers.get("Cookie", "").split(";")
        if scheme.lower() == "bearer" and _same(credentials.strip(), self.token):
            return None
        if any(_same(cookie.strip(), self._cookie) for cookie in cookies):
            return None
        query_token = parse_qs(urlsplit(address).query).get("token", [""])[0]
        if not (page and _same(query_token, self.token)):
            text = "the token is missing or wrong; open the address that `mrlm view` has printed"
            raise HTTPError(401, text)
        secure = "; Secure" if self._scheme == "https" else ""
        return f"{self._cookie}; Path=/; HttpOnly; SameSite=Lax{secure}"


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def _is_ip(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return False
