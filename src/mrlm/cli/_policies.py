"""What `mrlm serve` does for policies: from its options to a desk and its doors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mrlm.core.errors import ConfigError

if TYPE_CHECKING:
    from mrlm.serving.environments.server import Settings
    from mrlm.serving.policies.hub import PolicyHub

PolicyOption = Annotated[
    list[str] | None,
    typer.Option("--policy", help="NAME=FOLDER, hub id or run folder; may be given several times."),
]
PoliciesOf = Annotated[
    Path | None,
    typer.Option(help="An experiment whose policies are served as they are before it begins."),
]
HttpPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Policies speak the OpenAI protocol here; 0: a free port."),
]
TakeWeights = Annotated[
    bool, typer.Option("--take-weights", help="Clients may give policies new weights.")
]
WeightsFrom = Annotated[
    Path | None,
    typer.Option(help="Clients may have weights read from folders below this one."),
]
Device = Annotated[str, typer.Option(help="Where policies compute: auto, cpu, cuda:1, ...")]
Dtype = Annotated[str, typer.Option(help="Of the weights: float32, bfloat16, float16, auto.")]
EngineTimeout = Annotated[
    float, typer.Option(min=0.1, help="Seconds that a completion may take, with the wait for it.")
]


def open_desk(
    named: list[str] | None,
    of: Path | None,
    take_weights: bool,
    weights_from: Path | None,
    device: str,
    dtype: str,
    timeout: float,
) -> PolicyHub | None:
    """The desk of the policies that are to be served; `None` for none.

    Raises:
        ConfigError: an option is wrong, or a policy cannot be loaded.
    """
    if not named and of is None:
        return None
    if named and of is not None:
        raise ConfigError("give --policy or --policies-of, not both")
    if weights_from is not None and not weights_from.is_dir():
        raise ConfigError(f"--weights-from {weights_from}: there is no such folder")
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
def open_door(desk: PolicyHub, settings: Settings, port: int | None) -> Iterator[str | None]:
    """The HTTP door of a server, guarded as the server is; its address, or `None` where no port is
    asked for."""
    if port is None:
        yield None
        return
    from mrlm.serving.policies.admission import AdmissionLimits
    from mrlm.serving.policies.http_server import HttpServer
    from mrlm.serving.policies.openai_http import OpenAIHandler
    from mrlm.serving.protocol.security import check_exposure

    check_exposure(settings.host, settings.token, settings.tls_cert is not None)
    door = HttpServer(
        OpenAIHandler(desk, settings.token, AdmissionLimits(body=settings.max_message_bytes)),
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
            raise ConfigError(f"--policy {each}: there is a policy {name!r} already")
        found[name] = path
    return found
