"""The section of the engine, field by field."""

from collections.abc import Mapping
from typing import Any, ClassVar

from mrlm.config.base import Count, Positive, Reference, Section, Whole
from mrlm.core.matters import Matters

LEAN_KEYS = ("batch_size", "cache_mib", "int8", "kv_mib")
"""Settings of engines in this process."""
OWN_KEYS = ("name", "timeout", "tolerance", *LEAN_KEYS)
"""Settings that no server takes."""


class EngineConfig(Section):
    """The engine that samples completions."""

    name: Reference = "lean"
    """`lean`; `hf` is the general engine, the fallback of `lean` for unsupported models; `vllm`,
    `sglang` and `mrlm` are external servers."""
    timeout: Positive = 600.0
    """Seconds that a server may take for one completion, or that an engine in this process may make
    no progress: on a slow processor its calls take as long as they need."""
    batch_size: Count = 256
    """Maximum number of rows decoded at once; further rows are added as others finish."""
    cache_mib: Whole = 1024
    """KV cache that `lean` keeps from turn to turn, in MiB; 0 disables it."""
    int8: bool = False
    """Products in 8 bits while `lean` samples on a CPU: faster from 15M weights on. Samples are
    those of rounded weights, for which `importance` of the algorithm has to correct."""
    kv_mib: Count | None = None
    """Memory of the keys and values of running rows, in MiB; further rows wait. By default, a share
    of an accelerator's free memory, or half of the machine's."""
    tolerance: Positive | None = None
    """Maximum difference of log-probs between engine and trainer after a weight update (nats, of
    any token); by default the engine's rounding tolerance."""
    base_url: str | None = None
    """URL of an engine server, `http://host:port` (`mrlm`: `host:port`)."""
    servers: dict[str, str] | None = None
    """Policy -> server, if whole models have one each."""
    model: str | None = None
    """Name of the model on the server; by default reported by the server."""
    api_key_env: str | None = None
    """Environment variable with the server's key or token."""
    ca: str | None = None
    """PEM file of trusted certificates; enables TLS for `mrlm`."""
    sync_folder: str | None = None
    """Folder in which weights are written for the server, which must see it under the same path; by
    default a temporary one."""
    sleep: bool | None = None
    """Release the server's memory while policies are trained; false by default."""
    max_retries: Whole | None = None
    """Maximum number of retries of a call after a transient error; 4 by default."""
    max_concurrent: Count | None = None
    """Maximum number of concurrent calls; 256 by default."""

    matters: ClassVar[Mapping[str, Matters]] = {
        "tolerance": Matters(
            lambda s, run: run.config.training.checks != "off",
            "with training.checks=off engine and trainer are not compared; remove one of the two",
        ),
        **{
            name: Matters(
                lambda s, run, name=name: name in run.engine,
                "this engine does not take it; remove it",
            )
            for name in LEAN_KEYS
        },
    }

    def of_server(self) -> dict[str, Any]:
        """The set keys that only server engines have."""
        settings: dict[str, Any] = {}
        for key in type(self).model_fields:
            if key not in OWN_KEYS and getattr(self, key) is not None:
                settings[key] = getattr(self, key)
        return settings
