"""Programs on another machine: the `client`, the `server` there, and their messages (`wire`)."""

from mrlm.sandbox.remote.client import RemoteSandbox as RemoteSandbox
from mrlm.sandbox.remote.client import from_words as from_words
