"""Samples through an MRLM server (`mrlm serve --policy`): token ids in and out, weights streamed to
it after every update. Completions are identical, bit by bit, to those of the engine in this
process."""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from mrlm.core.errors import ConfigError, EndpointError, EngineError
from mrlm.core.types import Completion
from mrlm.engines.shared.calls import secret
from mrlm.engines.shared.policies import PolicyEngine
from mrlm.learn.policy.lora import BASE
from mrlm.learn.policy.policy import Policy
from mrlm.learn.policy.weight_files import write_weights
from mrlm.play.engine import Request
from mrlm.serving.client.policies import PolicyClient


class MrlmEngine(PolicyEngine):
    """Samples from policies of the same names and shapes on one server, which has to run with
    `--take-weights`.

    Weights are sent before the first request, after every update, and again if the server was
    restarted or has other weights than it was sent.

    Args:
        policies: name -> policy of the learner.
        base_url: the server, `host:port`; `grpcs://host:port` for TLS with the certificates that
            the system trusts.
        api_key_env: the environment variable with the server's token.
        ca: PEM file of certificates to trust; turns TLS on.
        timeout: seconds that one call may take.
        max_retries: how often a call is repeated.

    Raises:
        ConfigError: the address is missing, the token is not set, or `ca` cannot be read.
    """

    def __init__(
        self,
        policies: Mapping[str, Policy],
        base_url: str | None = None,
        api_key_env: str | None = None,
        ca: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 4,
    ) -> None:
        if base_url is None:
            raise ConfigError(
                "engine.name='mrlm' requires the address of a server; set engine.base_url "
                "to the host:port that mrlm serve prints"
            )
        if "://" in base_url and not base_url.startswith(("grpc://", "grpcs://")):
            raise ConfigError(
                f"engine.base_url={base_url!r}: the engine 'mrlm' uses gRPC; write host:port"
            )
        super().__init__(policies)
        self.pushes: int = 0
        """Times that weights were sent so far."""
        self._client = PolicyClient(
            base_url.removeprefix("grpcs://"),
            secret(api_key_env),
            ca,
            base_url.startswith("grpcs://"),
            timeout,
            max_retries,
        )
        self._placed: dict[str, int] = {}
        """Policy -> `lost` of the client when its weights were sent."""

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order. Raises `EngineError`: no answer from the server,
        after all retries; `EndpointError`: the server refuses permanently."""
        parts: dict[str, list[Request]] = {}
        for request in requests:
            parts.setdefault(request.policy, []).append(request)
        for name in parts:
            if name not in self._placed:
                await self._place(name)
        completions = await asyncio.gather(*(self._sampled(*part) for part in parts.items()))
        answers = dict(zip(parts, map(iter, completions), strict=True))
        return [next(answers[request.policy]) for request in requests]

    async def load_weights(self, policy: str, weights: Policy, version: int) -> None:
        await super().load_weights(policy, weights, version)
        await self._place(policy)

    async def _sampled(self, name: str, requests: list[Request]) -> Sequence[Completion]:
        """Sample from a policy, with the weights that it was sent."""
        for _ in range(2):
            completions = await self._client.generate(name, requests)
            if self._placed[name] == self._client.lost and self._right(name, completions):
                return completions
            await self._place(name)
        completions = await self._client.generate(name, requests)
        if not self._right(name, completions):
            raise EngineError(
                f"policy {name!r} at {self._client.address} samples with version "
                f"{completions[0].policy_version} of its weights, not {self.versions[name]}: does "
                "another run update it too?"
            )
        return completions

    def _right(self, name: str, completions: Sequence[Completion]) -> bool:
        frozen, version = self.policies[name].adapter == BASE, self.versions[name]
        return frozen or all(item.policy_version == version for item in completions)

    async def _place(self, name: str) -> None:
        policy, version = self.policies[name], self.versions[name]
        if policy.adapter != BASE:
            with tempfile.TemporaryDirectory(prefix="mrlm-weights-") as folder:
                file = Path(folder) / "weights.safetensors"
                await asyncio.to_thread(write_weights, policy, file)
                await self._client.update(name, file, version)
            self.pushes += 1
        lost = self._client.lost
        served, _ = await self._client.list()
        if name not in served:
            raise EndpointError(
                f"the server at {self._client.address} has no policy {name!r}, only "
                f"{', '.join(served)}; start it with --policy {name}=..."
            )
        self._placed[name] = lost


PLUGIN = MrlmEngine
