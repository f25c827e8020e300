"""`mrlm play`: a person replaces one agent, in a terminal or over a pipe; the others act as in
training."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mrlm.cli._options import config_to_play
from mrlm.core.errors import ConfigError, PlayerLeft

if TYPE_CHECKING:
    from mrlm.config import ExperimentConfig
    from mrlm.core.episodes import Episode
    from mrlm.core.types import Message
    from mrlm.play.episode_runner import EpisodeRunner

HELP = """\
A line is an answer; empty lines are not sent. /long begins an answer of several lines, and so does
a line that begins with ```; it ends with an empty line (not inside of ```) or a single dot.
/again repeats the messages, /quit leaves, and so do the end of the input and Ctrl-C."""


def play(
    overrides: list[str] | None = None,
    config: Path | None = None,
    model: str | None = None,
    environment: str | None = None,
    agent: str | None = None,
    others: Literal["policy", "expert"] = "policy",
    seed: int | None = None,
    episodes: int = 1,
    multiline: bool = False,
) -> None:
    """Play in the terminal, in place of an agent."""
    from mrlm.build.human_player import open_table
    from mrlm.core.sync_async import run_async
    from mrlm.runs import handling, interrupt

    more = [] if seed is None else [f"training.seed={seed}"]
    loaded = _experiment(config, [*(overrides or ()), *more], model, environment)
    terminal = Terminal(multiline)
    hooks = terminal.ask, terminal.on_step, terminal.show_board
    table, name = open_table(loaded, agent, *hooks, others)
    terminal.name = name
    rest = ", ".join(f"{other} ({others})" for other in table.settings_of if other != name)
    you = f"{name}; with you: {rest}" if rest else name
    terminal.say(f"You are {you}. /help lists the commands.")

    async def played() -> None:
        for number in range(1, episodes + 1):
            terminal.begin(f"episode {number} of {episodes}")
            (group,) = await table.take(1)
            terminal.end(group.episodes)

    with handling(("SIGINT",), interrupt):  # ends waiting for a line at once
        try:
            run_async(played())
        except PlayerLeft:
            terminal.say("You have left.")


class Terminal:
    """Input and output of a person; every answer has several lines with `multiline`. No text that
    is shown can steer the terminal."""

    def __init__(self, multiline: bool) -> None:
        self.multiline = multiline
        self.name: str = ""
        self._known: list[tuple[str, str]] = []
        self._board = ""
        self._piped: bool = not sys.stdin.isatty()
        if not self._piped:
            import readline  # noqa: F401  (lines can be edited)

    def begin(self, title: str) -> None:
        self._known, self._board = [], ""
        self.say(f"\n=== {title} ===")

    def ask(self, name: str, messages: Sequence[Message]) -> str:
        """Shows the new messages of the conversation, and reads an answer. Raises `PlayerLeft`: the
        person does not want to answer."""
        seen = [(str(message.role), message.content) for message in messages]
        pairs = zip(seen, self._known, strict=False)
        both = min(len(seen), len(self._known))
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), both)
        if same < len(self._known):
            self.say("(a new conversation)")
            same = 0
        self._show(messages[same:])
        text = self._answer(lambda: self._show(messages))
        self._known = [*seen, ("assistant", text)]
        return text

    def on_step(self, env: EpisodeRunner) -> None:
        """Shows the rewards of a step, and at the end the environment's last message."""
        result = env.result
        last = result.observations.get(self.name)
        if result.done and last is not None:
            self._show(last.messages)
        self.show_board(env)
        for agent, reward in result.rewards.items():
            parts = ", ".join(f"{name} {value:g}" for name, value in reward.components.items())
            self.say(f"reward of {agent}: {reward.value:+g}{f' ({parts})' if parts else ''}")

    def show_board(self, env: EpisodeRunner) -> None:
        """Shows the board, as far as the person's agent may see it, where it has changed."""
        from mrlm.core.board import as_text
        from mrlm.core.user_errors import explain

        try:
            roles = env.environment.agents
            role = env.agents[self.name].place if len(roles) > 1 else next(iter(roles))
            board = as_text(env.environment.render(role) or "")
        except Exception as error:  # a drawing never ends a game
            board = f"render failed: {explain(error)}"
        if board and board != self._board:
            self.say(f"[board]\n{board}")
        self._board = board

    def end(self, episodes: Sequence[Episode]) -> None:
        """Reports how an episode ended; a workflow with several branches has several."""
        for episode in episodes:
            ended = f"{episode.status} after {len(episode.step_rewards)} step(s)"
            earned = ", ".join(f"{name} {r.reward:+g}" for name, r in episode.rollouts.items())
            why = f" ({episode.error})" if episode.error else ""
            self.say(f"=== {ended}{why}; the team {episode.reward:+g}; {earned or 'nobody spoke'}")

    def say(self, text: str) -> None:
        """Prints a text, escaped so that it cannot steer the terminal."""
        from mrlm.tracking.console import encodable, printable

        print(encodable(printable(text)), flush=True)

    def _show(self, messages: Sequence[Message]) -> None:
        for message in messages:
            role = str(message.role)
            whose = message.agent or ("environment" if role == "user" else role)
            self.say(f"[{whose}]\n{message.content}")

    def _answer(self, again: Callable[[], None]) -> str:
        """A line, or several; commands are carried out on the way."""
        while True:
            line = self._line(f"{self.name}> ")
            word = line.strip().lower()
            if word == "/quit":
                raise PlayerLeft
            if word == "/help":
                self.say(HELP)
            elif word == "/again":
                again()
            elif word == "/long":
                return self._lines([])
            elif self.multiline or line.startswith("```"):
                if word not in ("", "."):
                    return self._lines([line])
            elif word not in ("", "."):
                return line

    def _lines(self, lines: list[str]) -> str:
        """Further lines, up to an empty one that is not inside of code, to a dot, or to the end."""
        while True:
            try:
                line = self._line("... ")
            except PlayerLeft:
                if not lines:
                    raise
                break
            inside = sum(earlier.startswith("```") for earlier in lines) % 2 == 1
            if line.strip() == "." or not (line.strip() or inside):
                break
            lines.append(line)
        return "\n".join(lines)

    def _line(self, prompt: str) -> str:
        try:
            line = input(prompt)
        except EOFError:
            print()
            raise PlayerLeft from None
        if self._piped:  # so that a transcript is whole
            self.say(line)
        return line


def _experiment(
    path: Path | None, overrides: Sequence[str], model: str | None, environment: str | None
) -> ExperimentConfig:
    """The experiment with the named environment, or with all of its own."""
    if path is None and model is None and environment is None:
        raise ConfigError(
            "no experiment is given; use --environment, such as tic_tac_toe, or --config or --model"
        )
    if path is None and model is None:
        model = "mrlm/tiny"
    if environment is None or path is None:
        return config_to_play(path, overrides, model, [environment] if environment else None)
    whole = config_to_play(path, overrides, model, None)
    listed: list[Any] = whole.given().get("environments", [])
    for section in listed:
        if environment in (section.get("name"), section["env_type"]):
            return whole.merged({"environments": [section]})
    return config_to_play(path, overrides, model, [environment])
