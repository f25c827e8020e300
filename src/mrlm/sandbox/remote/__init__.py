"""Programs on another machine: the `client`, the `server` there, and their messages (`wire`)."""

from mrlm.sandbox.remote.client import RemoteSandbox, from_words

__all__ = ["RemoteSandbox", "from_words"]
