"""The workflow of the environment `app`: it runs the app of an episode, whose calls are turns."""

import asyncio
import contextlib
import inspect
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from mrlm.core.addresses import app_variables
from mrlm.core.errors import ENDS_RUN, EpisodeError
from mrlm.core.sync_async import PATIENCE, in_thread
from mrlm.core.types import JSON, Task
from mrlm.play.agent import Agents, PromptTooLong
from mrlm.play.episode_runner import EpisodeRunner
from mrlm.play.workflow import Workflow
from mrlm.sandbox.tiers import confined, python
from mrlm.serving.apps.clients import routed_clients
from mrlm.serving.apps.handler import handler
from mrlm.serving.apps.session import AppSession

KEPT_VARIABLES = ("PATH", "HOME", "USER", "SHELL", "LANG", "LC_ALL", "TMPDIR", "TZ", "SYSTEMROOT")
"""Variables that a program gets besides those that it is given."""
INSIDE = 8000
"""Port in a sandbox."""
STARTER = (
    "import os,socket as s,sys\n"
    f"door=s.create_server(('127.0.0.1',{INSIDE}),backlog=256)\n"
    "s.send_fds(s.socket(fileno=int(sys.argv[1])),[b'.'],[door.fileno()])\n"
    "try: os.execvp(sys.argv[2],sys.argv[2:])\n"
    "except OSError as error: sys.exit(f'{sys.argv[2]} cannot be started in the sandbox: {error}')"
)
"""Opens the port in the network of a sandbox, sends it out, and becomes the program."""
SHOWN = 2000
"""Characters of a program's errors in messages."""


class AppWorkflow(Workflow):
    """Runs the app with the row of an episode, and books its rewards."""

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        await env.reset()
        world: Any = env.environment
        with handler().session(env, world.agents, world.instances, world.agent_of) as session:
            result = await self._played(session, world, env.timeout)
            world.outcome = (result, session)
            rollouts = env.episode.rollouts
            if not rollouts:
                return  # the error says that no agent spoke
            last = {name: rollout.turns[-1].message for name, rollout in rollouts.items()}
            await env.step({name: message for name, message in last.items() if message is not None})
            session.place()

    async def _played(self, session: AppSession, world: Any, timeout: float | None) -> Any:
        """The app's result. Raises `EpisodeError`: it makes no call for `timeout` seconds, or the
        program fails; and whatever it raises."""
        with contextlib.ExitStack() as scope:
            if world.command:
                job = _run_program(session, world)
            else:
                scope.enter_context(routed_clients())
                scope.enter_context(app_variables())
                job = _called(world.app, world.row)
            app = asyncio.ensure_future(job)
            try:
                await _watch(app, session, timeout)
            finally:
                if not app.done():
                    app.cancel()
                    await asyncio.wait({app}, timeout=PATIENCE)
        failed = app.done() and (app.cancelled() or app.exception() is not None)
        decisive = (*ENDS_RUN, PromptTooLong) if failed else ENDS_RUN
        if isinstance(session.failure, decisive):
            raise session.failure
        return app.result()


async def _watch(app: asyncio.Future[Any], session: AppSession, timeout: float | None) -> None:
    """Wait for the end of an app. While it computes, and none of its calls is being answered,
    batches of requests wait for it, as they do for environments."""
    app.add_done_callback(lambda _: session.changed.set())
    while not app.done() and not isinstance(session.failure, ENDS_RUN):
        session.changed.clear()
        if session.open:
            await session.changed.wait()
            continue
        async with session.env.working():
            try:
                await asyncio.wait_for(session.changed.wait(), timeout)
            except TimeoutError:
                raise EpisodeError(
                    f"the app made no call for {timeout:g} s and did not end; raise the "
                    "environment's timeout if it needs more"
                ) from None


async def _called(app: Callable[..., Any], row: JSON) -> Any:
    """The result of a function, which runs in a thread unless it is a coroutine."""
    if inspect.iscoroutinefunction(app) or inspect.iscoroutinefunction(app.__call__):
        return await app(row)
    result = await in_thread(partial(app, row))
    return await result if isinstance(result, Awaitable) else result


async def _run_program(session: AppSession, world: Any) -> Any:
    """The output of a program that reads the row as JSON: the JSON of its last line, or its text.
    Raises `EpisodeError`: it cannot be started, or ends with an error."""
    command, server = world.command, handler().server
    address = server.url if world.sandbox is None else f"http://127.0.0.1:{INSIDE}"
    url = f"{address}/e/{session.id}"
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    if world.sandbox is not None:
        kept |= {"HOME": "/tmp", "TMPDIR": "/tmp"}
    variables = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": session.key}
    variables |= {"MRLM_REWARD_URL": f"{url}/reward"}
    pipe, (door, theirs) = asyncio.subprocess.PIPE, socket.socketpair()
    words, end = command, None
    if world.sandbox is not None:
        words = confined([python(), "-c", STARTER, str(theirs.fileno()), *command], world.sandbox)
    with door, theirs:
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env={**kept, **world.variables, **variables},
                start_new_session=True,
                pass_fds=[] if world.sandbox is None else [theirs.fileno()],
            )
        except OSError as error:
            raise EpisodeError(f"command {command[0]!r} cannot be started: {error}") from error
        theirs.close()
        try:
            if world.sandbox is not None:
                _, sent, *_ = await asyncio.to_thread(socket.recv_fds, door, 1, 1)
                # none, of a sandbox that did not start: its errors say why
                end = await server.listen(socket.socket(fileno=sent[0])) if sent else None
            data = json.dumps(world.row, default=str).encode()
            output, errors = await process.communicate(data)
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it has started ends with it
                os.killpg(process.pid, signal.SIGKILL)
            if end is not None:
                end()
    if process.returncode:
        text = errors.decode(errors="replace").strip()[-SHOWN:] or "it wrote no error"
        raise EpisodeError(f"command {command[0]!r} ended with {process.returncode}: {text}")
    text = output.decode(errors="replace").strip()
    try:
        return json.loads(text.rpartition("\n")[2])
    except ValueError:
        return text
