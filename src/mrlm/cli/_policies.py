"""The policy part of `mrlm serve`: from its options to a policy hub and its entry points."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mrlm.core.errors import ConfigError

if TYPE_CHECKING:
    from mrlm.serving.environments.server import Settings
    from mrlm.serving.policies.hub import PolicyHub


def open_hub(
    named: list[str] | None,
    of: Path | None,
    take_weights: bool,
    weights_from: Path | None,
    device: str,
    dtype: str,
    timeout: float,
) -> PolicyHub | None:
    """The hub of the policies to serve; `None` for none.

    Raises:
        ConfigError: an option is wrong, or a policy cannot be loaded.
    """
    if not named and of is None:
        return None
    if named and of is not None:
        raise ConfigError("give --policy or --policies-of, not both")
    if weights_from is not None and not weights_from.is_dir():
        raise ConfigError(f"--weights-from {weights_from}: this folder does not exist")
    import torch

    from mrlm.build.served_policies import house_of, house_of_config
    from mrlm.config import load_config
    from mrlm.runs import TINY
    from mrlm.serving.policies.hub import PolicyHub

    if of is not None:
        house = house_of_config(load_config(of).stage_configs()[-1][1])
    else:
        house = house_of(_by_name(named or []), dtype, device)
    if all(policy.size < TINY for policy in house.policies.values()):
        torch.set_num_threads(1)
    return PolicyHub(
        house.served(),
        timeout=timeout,
        add_adapter=house.add_adapter,
        takes_weights=take_weights or weights_from is not None,
        weights_from=weights_from,
    )


@contextmanager
def open_door(hub: PolicyHub, settings: Settings, port: int | None) -> Iterator[str | None]:
    """The HTTP entry point of a server, with the server's protection; its address, or `None`
    without a port."""
    if port is None:
        yield None
        return
    from mrlm.serving.policies.admission import AdmissionLimits
    from mrlm.serving.policies.http_server import HttpServer
    from mrlm.serving.policies.openai_http import OpenAIHandler
    from mrlm.serving.protocol.security import check_exposure

    check_exposure(settings.host, settings.token, settings.tls_cert is not None)
    door = HttpServer(
        OpenAIHandler(hub, settings.token, AdmissionLimits(body=settings.max_message_bytes)),
        settings.host,
        port,
        settings.tls_cert,
        settings.tls_key,
        settings.client_ca,
    ).start()
    try:
        yield door.url
    finally:
        door.stop()


def _by_name(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given:
        name, sign, path = each.partition("=")
        if not (name and sign and path):
            raise ConfigError(f"--policy {each}: write NAME=FOLDER, such as judge=runs/judge")
        if name in found:
            raise ConfigError(f"--policy {each}: the name {name!r} is given twice; use another")
        found[name] = path
    return found
