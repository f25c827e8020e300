"""Programs in containers, one container per program; `_inside` is process 1 of a container."""

from mrlm.sandbox.docker.sandbox import DockerSandbox as DockerSandbox
from mrlm.sandbox.docker.sandbox import from_words as from_words
