"""Network addresses."""

import ipaddress
import os
from collections.abc import Iterator
from contextlib import contextmanager


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def host_and_port(host: str, port: int) -> str:
    """`HOST:PORT`, with brackets round an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


APP = "http://app.mrlm.invalid/v1"
"""The address of the agents of an app in this process: clients are routed to their episode."""
_variables = {"OPENAI_BASE_URL": APP, "OPENAI_API_KEY": "mrlm-app"}
_before: list[dict[str, str | None]] = []


@contextmanager
def app_variables() -> Iterator[None]:
    """Environment variables by which an OpenAI client that is made meanwhile calls the agents of an
    app; nested uses change nothing, and the last restores what was set before."""
    _before.append({name: os.environ.get(name) for name in _variables})
    os.environ.update(_variables)
    try:
        yield
    finally:
        first = _before[0]
        _before.pop()
        for name, value in first.items() if not _before else ():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
