"""Archives of untrusted origin: unpacked whole, or refused without a trace. Formats are read in
`untar`, `unzip` and `inflating`; `unpacked` is where files go."""

from __future__ import annotations

from mrlm.sandbox.archives.unpacked import ArchiveLimits, ArchiveRefused
from mrlm.sandbox.archives.unpacking import unpack

__all__ = ["ArchiveLimits", "ArchiveRefused", "unpack"]
