"""Environments and policies behind a network: `mrlm.proto`, who serves it, and who asks."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what its core prints is an error of ours as well
