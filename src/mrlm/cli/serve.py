"""`mrlm serve`: environments and policies for remote clients."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mrlm.cli._options import refuse
from mrlm.core.errors import ConfigError

if TYPE_CHECKING:
    from mrlm.serving.environments.server import EnvironmentServer, ServedEnvironment, Settings
    from mrlm.serving.policies.hub import PolicyHub

TOKEN = "MRLM_TOKEN"
"""The environment variable with the token, if no other is named."""
SECTIONS = ("environments", "eval_envs")
"""Keys of a config file that are served."""


def serve(
    environments: list[str] | None = None,
    config: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 50051,
    token: str | None = None,
    token_env: str | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    client_ca: Path | None = None,
    max_sessions: int = 4096,
    max_calls: int = 1024,
    max_message: float = 4.0,
    lease: float = 60.0,
    workers: int | None = None,
    timeout: float = 60.0,
    metrics_port: int | None = None,
    arguments: bool = True,
    grace: float = 30.0,
    policy: list[str] | None = None,
    policies_of: Path | None = None,
    team: Path | None = None,
    http_port: int | None = None,
    take_weights: bool = False,
    weights_from: Path | None = None,
    device: str | None = None,
    dtype: str | None = None,
    engine_timeout: float = 600.0,
) -> None:
    """Serve environments and policies. SIGTERM and Ctrl-C let open sessions finish first."""
    from mrlm.serving.environments.server import Settings

    worlds: list[str | ServedEnvironment] = [*_named(environments or []), *_configured(config)]
    if not (worlds or policy or policies_of or team):
        raise ConfigError("nothing to serve is given; use --environments or --policy")
    if not (policy or policies_of or team):
        how = {"http_port": http_port, "weights_from": weights_from, "take_weights": take_weights}
        refuse("is for policies, none is served; give --policy", device=device, dtype=dtype, **how)
    settings = Settings(
        environments=worlds,
        host=host,
        port=port,
        token=_token(token, token_env),
        tls_cert=tls_cert,
        tls_key=tls_key,
        client_ca=client_ca,
        max_sessions=max_sessions,
        max_calls=max_calls,
        lease=lease,
        workers=workers or min(os.cpu_count() or 1, 8),
        timeout=timeout,
        max_message_bytes=int(max_message * 2**20),
        metrics_port=metrics_port,
        arguments=arguments,
        hidden=(TOKEN, token_env) if token_env else (TOKEN,),
    )
    if not worlds:
        _refuse_sessions(settings, workers)
    how = take_weights, weights_from, device, dtype, engine_timeout
    _run(settings, open_hub(policy, policies_of, *how, team), http_port, grace)


def _refuse_sessions(settings: Settings, workers: int | None) -> None:
    names = ("lease", "timeout", "max_sessions")
    how = {name: getattr(settings, name) != getattr(type(settings)(), name) for name in names}
    how |= {"workers": workers, "no_arguments": not settings.arguments}
    refuse("is for environments, none is served; give --environments", **how)


def _run(settings: Settings, hub: PolicyHub | None, http_port: int | None, grace: float) -> None:
    from mrlm.serving.environments.server import EnvironmentServer
    from mrlm.serving.environments.server import serve as run

    if hub is None:
        asyncio.run(run(EnvironmentServer(settings), grace, _say))
        return
    from mrlm.serving.policies.grpc import Policies

    server = EnvironmentServer(settings, [Policies(hub).add_to], list(hub.served))
    gc.freeze()  # else garbage collection in large requests would scan all libraries
    with closing(hub), open_door(hub, settings, http_port) as url:
        asyncio.run(run(server, grace, lambda started: _say(started, url)))


def _say(server: EnvironmentServer, url: str | None = None) -> None:
    """Prints one line for the process that waits for the server."""
    guards = [
        "TLS" if server.settings.tls_cert is not None else "no TLS",
        "token" if server.settings.token is not None else "no token",
    ]
    watched = "" if server.metrics_port is None else f"; metrics on port {server.metrics_port}"
    watched += "" if url is None else f"; OpenAI protocol at {url}/v1"
    names = [*server.served, *(f"policy {name}" for name in server.policies)]
    print(
        f"serving on {server.address}: {', '.join(names)}; "
        f"{len(server.pool.workers)} workers; {', '.join(guards)}{watched}",
        flush=True,
    )


def _named(values: list[str]) -> list[str]:
    return [name.strip() for names in values for name in names.split(",") if name.strip()]


def _configured(path: Path | None) -> list[ServedEnvironment]:
    """The environments of a file, such as an experiment; its other sections are not read."""
    if path is None:
        return []
    from mrlm.config import EnvironmentConfig
    from mrlm.config.loading import read_settings
    from mrlm.serving.environments.server import ServedEnvironment

    data = read_settings(path)
    sections = next((data[key] for key in SECTIONS if key in data), None)
    if not isinstance(sections, list) or not all(isinstance(entry, dict) for entry in sections):
        raise ConfigError(f"--config {path}: environments: must be a list of mappings")
    served = []
    for number, entry in enumerate(sections):
        try:
            section = EnvironmentConfig(**entry)
        except ConfigError as error:
            raise ConfigError(f"--config {path}, environments.{number}: {error}") from error
        arguments = section.remote_arguments
        name = section.name or section.env_type
        served.append(
            ServedEnvironment(name, section.env_type, arguments, section.timeout, whole=True)
        )
    return served


def _token(token: str | None, variable: str | None) -> str | None:
    if token is not None and variable is not None:
        raise ConfigError("give --token or --token-env, not both")
    if variable is not None and variable not in os.environ:
        raise ConfigError(f"--token-env {variable}: this environment variable is not set")
    return os.environ.get(variable or TOKEN) if token is None else token


# -- policies --------------------------------------------------------------------------------------


def open_hub(
    named: list[str] | None,
    of: Path | None,
    take_weights: bool,
    weights_from: Path | None,
    device: str | None,
    dtype: str | None,
    timeout: float,
    team: Path | None = None,
) -> PolicyHub | None:
    """The hub of the policies to serve; `None` for none. Without a device or dtype they are those
    of the config, else `auto` and float32. Raises `ConfigError`: an option is wrong,
    or a policy cannot be loaded."""
    if not named and of is None and team is None:
        return None
    if bool(named) + (of is not None) + (team is not None) > 1:
        raise ConfigError("--policy, --policies-of and --team exclude each other; give one of them")
    if weights_from is not None and not weights_from.is_dir():
        raise ConfigError(f"--weights-from {weights_from}: this folder does not exist")
    import torch

    from mrlm.build.served_policies import house_of, house_of_config, house_of_team
    from mrlm.config import load_config
    from mrlm.runs import TINY
    from mrlm.serving.policies.hub import PolicyHub

    if of is not None:
        changes = {"model.device": device, "model.torch_dtype": dtype}
        config = load_config(of).stage_configs()[-1][1]
        house = house_of_config(config.merged({k: v for k, v in changes.items() if v is not None}))
    elif team is not None:
        house = house_of_team(team, dtype or "float32", device or "auto")
    else:
        house = house_of(_by_name(named or []), dtype or "float32", device or "auto")
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
    limits = AdmissionLimits(body=settings.max_message_bytes)
    handler = OpenAIHandler(hub, settings.token, limits)
    guards = settings.tls_cert, settings.tls_key, settings.client_ca
    door = HttpServer(handler, settings.host, port, *guards).start()
    try:
        yield door.url
    finally:
        door.stop()


def _by_name(entries: list[str]) -> dict[str, str]:
    folders: dict[str, str] = {}
    for entry in entries:
        name, sign, path = entry.partition("=")
        if not (name and sign and path):
            raise ConfigError(f"--policy {entry}: write NAME=FOLDER, such as judge=runs/judge")
        if name in folders:
            raise ConfigError(f"--policy {entry}: the name {name!r} is given twice; use another")
        folders[name] = path
    return folders
