"""For code of an app while it runs in an episode: rewards, and the episode's address."""

import importlib
from typing import Any

from mrlm.core.addresses import APP
from mrlm.core.errors import EpisodeError
from mrlm.serving.apps.handler import handler, on_loop
from mrlm.serving.apps.session import CURRENT, AppSession


async def reward(amount: float, agent: str | None = None, turn: int | str | None = None) -> None:
    """Give a reward from inside an app, in addition to what the reward function returns.

    Args:
        amount: the reward; 0 is one.
        agent: who gets it; by default the team.
        turn: the agent's turn: its number, or the id of the response; by default its last so far.

    Raises:
        EpisodeError: no episode of an app is running here.
        DataError: the agent or the turn does not exist.
        RewardError: the amount is not a finite number.
    """
    session = _session()

    async def note() -> None:
        session.reward(amount, agent, turn)

    await on_loop(session.loop, note())


def base_url(agent: str | None = None) -> str:
    """The address of the running episode, for a client that is not routed to it by itself: one
    without httpx, or in a thread or process of its own.

    Args:
        agent: whose address; by default the model of a request names the agent.

    Raises:
        EpisodeError: no episode of an app is running here.
    """
    session = _session()
    return f"{handler().server.url}/e/{session.id}{f'/{agent}' if agent else ''}/v1"


def api_key() -> str:
    """The key of the running episode. Raises `EpisodeError`: no episode of an app is running."""
    return _session().key


def client(**settings: Any) -> Any:
    """An `httpx.AsyncClient` whose calls go to the running episode, for libraries that take one:
    `AsyncOpenAI(base_url=mrlm.app.ADDRESS, http_client=mrlm.app.client())`.

    Args:
        **settings: arguments of `AsyncClient`.
    """
    return importlib.import_module("httpx2").AsyncClient(base_url=ADDRESS, **settings)


ADDRESS = APP
"""The base URL of the agents for clients in this process."""


def _session() -> AppSession:
    session = CURRENT.get()
    if session is None:
        raise EpisodeError(
            "no episode of an app is running here; in another process, POST to MRLM_REWARD_URL"
        )
    return session
