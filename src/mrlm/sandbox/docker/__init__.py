"""Programs in containers, one container per program; `_inside` is process 1 of a container."""

from mrlm.sandbox.docker.sandbox import DockerSandbox, from_words

__all__ = ["DockerSandbox", "from_words"]
