"""`mrlm serve`: environments and policies for remote clients."""

from __future__ import annotations

import gc
import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mrlm.cli._policies import (
    Device,
    Dtype,
    EngineTimeout,
    HttpPort,
    PoliciesOf,
    PolicyOption,
    TakeWeights,
    WeightsFrom,
    open_door,
    open_hub,
)
from mrlm.core.errors import ConfigError

if TYPE_CHECKING:
    from mrlm.serving.environments.server import EnvironmentServer, ServedEnvironment, Settings
    from mrlm.serving.policies.hub import PolicyHub

TOKEN = "MRLM_TOKEN"
"""The environment variable with the token, if no other is named."""

MaxMessage = Annotated[
    float, typer.Option(min=0.01, help="Maximal MiB of a request or a response.")
]
MetricsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Prometheus metrics, on 127.0.0.1; 0: a free port."),
]
SECTIONS = ("environments", "eval_envs")
"""Keys of a config file that are served."""


def serve(
    environments: Annotated[
        list[str] | None,
        typer.Option(
            "--environments", "-e", help="Environments by name or module:Class, comma-separated."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="A YAML file with environments: and their arguments."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; remote clients need TLS and a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 50051,
    token: Annotated[
        str | None, typer.Option(help="Token that clients need; others can read it in ps.")
    ] = None,
    token_env: Annotated[
        str | None, typer.Option(help=f"Variable with the token; default: {TOKEN} if it is set.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate (with its chain), a PEM file.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, a PEM file.")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(help="Clients must have certificates of this authority.")
    ] = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="Maximal open sessions.")] = 4096,
    max_calls: Annotated[int, typer.Option(min=1, help="Maximal concurrent calls.")] = 1024,
    max_message: MaxMessage = 4.0,
    lease: Annotated[
        float, typer.Option(min=1.0, help="Seconds that a session lives without a call.")
    ] = 60.0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Environment processes; default: one per core.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that an environment may take for one call.")
    ] = 60.0,
    metrics_port: MetricsPort = None,
    arguments: Annotated[
        bool, typer.Option(help="Whether clients may pass arguments to environments.")
    ] = True,
    grace: Annotated[
        float, typer.Option(min=0.0, help="Seconds that open sessions get at shutdown.")
    ] = 30.0,
    policy: PolicyOption = None,
    policies_of: PoliciesOf = None,
    http_port: HttpPort = None,
    take_weights: TakeWeights = False,
    weights_from: WeightsFrom = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    engine_timeout: EngineTimeout = 600.0,
) -> None:
    """Serve environments and policies. SIGTERM and Ctrl-C let open sessions finish first."""
    from mrlm.serving.environments.server import Settings

    worlds = _served(environments, config, bool(policy or policies_of), http_port)
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
    hub = open_hub(policy, policies_of, take_weights, weights_from, device, dtype, engine_timeout)
    _run(settings, hub, http_port, grace)


def _run(settings: Settings, hub: PolicyHub | None, http_port: int | None, grace: float) -> None:
    """Serve until a signal arrives."""
    from mrlm.serving.environments.server import EnvironmentServer
    from mrlm.serving.environments.server import serve as run

    if hub is None:
        run(EnvironmentServer(settings), grace, _say)
        return
    from mrlm.serving.policies.grpc import add_policies

    server = EnvironmentServer(settings, [add_policies(hub)], list(hub.served))
    gc.freeze()  # else garbage collection in large requests would scan all libraries
    with closing(hub), open_door(hub, settings, http_port) as url:
        run(server, grace, lambda started: _say(started, url))


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


def _served(
    environments: list[str] | None, config: Path | None, policies: bool, http_port: int | None
) -> list[str | ServedEnvironment]:
    """The environments to serve.

    Raises:
        ConfigError: nothing is to be served, or a file is wrong.
    """
    worlds = [*_named(environments or []), *_configured(config)]
    if not (worlds or policies):
        raise ConfigError(
            "nothing to serve is given; use --environments, such as code,math,debate, or --policy"
        )
    if http_port is not None and not policies:
        raise ConfigError("--http-port is for policies, and none is served; give --policy")
    return worlds


def _named(given: list[str]) -> list[str]:
    return [name.strip() for each in given for name in each.split(",") if name.strip()]


def _configured(path: Path | None) -> list[ServedEnvironment]:
    """The environments of a file, such as an experiment; its other sections are not read."""
    if path is None:
        return []
    from mrlm.config import EnvironmentConfig, yaml
    from mrlm.serving.environments.server import ServedEnvironment

    try:
        data = yaml.read(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: cannot be read: {error}") from error
    sections = next((data[key] for key in SECTIONS if isinstance(data, dict) and key in data), None)
    if not isinstance(sections, list) or not all(isinstance(each, dict) for each in sections):
        raise ConfigError(f"--config {path}: environments: must be a list of mappings")
    found = []
    for number, each in enumerate(sections):
        try:
            section = EnvironmentConfig(**each)
        except ConfigError as error:
            raise ConfigError(f"--config {path}, environments.{number}: {error}") from error
        given = section.parameters
        if section.max_turns is not None:
            given["max_turns"] = section.max_turns
        timeout = section.timeout if "timeout" in section.model_fields_set else None
        name = section.name or section.env_type
        found.append(ServedEnvironment(name, section.env_type, given, timeout, whole=True))
    return found


def _token(given: str | None, variable: str | None) -> str | None:
    if given is not None and variable is not None:
        raise ConfigError("give --token or --token-env, not both")
    if variable is not None and variable not in os.environ:
        raise ConfigError(f"--token-env {variable}: this environment variable is not set")
    return os.environ.get(variable or TOKEN) if given is None else given
