"""Base classes of games in which one player moves at a time, each with its own reward."""

import random
from collections.abc import Sequence
from typing import Literal

from mrlm.core.environment import Environment
from mrlm.core.errors import ConfigError
from mrlm.core.thoughts import stated_by
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.environments.shared.rows import RowTasks, agent_names, one_of

Opponent = Literal["agent", "random", "expert"]
Teaches = Literal["best", "any"]
Style = Literal["full", "short"]


class TurnGame(RowTasks, Environment):
    """A game whose players, the roles 0, 1, ..., are asked one at a time.

    A game sets `roles` and implements `begin` (sets up the game; role 0 moves first), `question`
    (the prompt of the role to move), `play` (processes its answer), `best` and `anything` (a good
    and an arbitrary legal answer of the role to move). `mover` is the role to move, and `None` when
    the game is over.

    All random draws of an episode are determined by its task and the number of the move, so that a
    copy, or a repeated call of the expert, gives the same result.

    Args:
        agents: names of the agents; by default the names of the roles (`player` if the others are
            scripted).
        opponent: player of the other roles: an `agent` each, or a script that plays at `random` or
            like the `expert`; then the environment has one agent.
        seat: the agent's role against a script: its name, or `either`, determined by the task.
        teaches: behaviour of `expert`: the `best` answer, or `any` legal one, which demonstrates
            only the answer format.
        style: `full` explains the game; `short` is terse, for small models.
    """

    roles: tuple[str, ...] = ("first", "second")

    def __init__(
        self,
        agents: str | Sequence[str] | None = None,
        opponent: Opponent = "agent",
        seat: str = "either",
        teaches: Teaches = "best",
        style: Style = "full",
    ) -> None:
        one_of("seat", seat, ("either", *self.roles))
        scripted = opponent != "agent"
        if not scripted and seat != "either":
            raise ConfigError(
                f"seat={seat!r} is the agent's role against a script; with opponent='agent' all "
                "roles are agents, so remove it"
            )
        roles = ("player",) if scripted else self.roles
        self.agents: tuple[str, ...] = agent_names(agents or roles, len(roles))
        self.opponent: Opponent = opponent
        self.seat: str = seat
        self.teaches: Teaches = teaches
        self.style: Style = style
        self.mover: int | None = None
        self._who: tuple[str | None, ...] = ()
        self._moves, self._key = 0, ""
        self._notices: tuple[list[str], ...] = ()
        self._owed: dict[int, Reward] = {}

    # -- implemented by a game ---------------------------------------------------------------------

    def begin(self, task: Task) -> None:
        """Set the game up."""
        raise NotImplementedError

    def question(self, role: int) -> str:
        """The prompt of a role that is to move."""
        raise NotImplementedError

    def play(self, role: int, text: str) -> None:
        """Process the answer of a role."""
        raise NotImplementedError

    def best(self, role: int) -> str:
        """A good answer."""
        raise NotImplementedError

    def anything(self, role: int) -> str:
        """An arbitrary legal answer."""
        raise NotImplementedError

    # -- used by a game ----------------------------------------------------------------------------

    def tell(self, role: int, full: str, short: str) -> None:
        """Add text to a role's next prompt, in either style."""
        self._notices[role].append(full if self.style == "full" else short)

    def explain(self, rules: str) -> None:
        """Begin the first prompts of all roles with the rules, in the full style."""
        if self.style == "full":
            for notices in self._notices:
                notices.append(rules)

    def pay(self, role: int, value: float, **components: float) -> None:
        """Add to the reward of a role; components are summed by name."""
        owed = self._owed.setdefault(role, Reward(0.0))
        owed.value += value
        for name, amount in components.items():
            owed.components[name] = owed.components.get(name, 0.0) + amount

    def pay_all(self, value: float, **components: float) -> None:
        """Add to the reward of every role."""
        for role in range(len(self.roles)):
            self.pay(role, value, **components)

    def drawn(self) -> random.Random:
        """The random generator of this move."""
        return random.Random(f"{self._key}/{self._moves}")

    def players(self) -> tuple[str | None, ...]:
        """The agent of each role; `None` is a script."""
        if self.opponent == "agent":
            return self.agents
        role = random.Random(f"{self._key}/seat").randrange(len(self.roles))
        mine = role if self.seat == "either" else self.roles.index(self.seat)
        return tuple(self.agents[0] if role == mine else None for role in range(len(self.roles)))

    def scripted(self, role: int) -> str:
        """The answer of a script in a role."""
        return self.best(role) if self.opponent == "expert" else self.anything(role)

    # -- the environment ---------------------------------------------------------------------------

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        task = task or self.task(seed or 0)
        self._key, self._moves = f"{type(self).__name__}/{task.id}", 0
        self._notices, self._owed = tuple([] for _ in self.roles), {}
        self._who = self.players()
        self.mover = 0
        self.begin(task)
        return self._asked()

    def step(self, actions: dict[str, Message]) -> StepResult:
        assert self.mover is not None, "the game is over"
        name = self._who[self.mover]
        self._take(stated_by(actions, name))
        return self._asked()

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        if self.mover is None or self._who[self.mover] != agent:
            return None
        return self.best(self.mover) if self.teaches == "best" else self.anything(self.mover)

    def _take(self, text: str) -> None:
        assert self.mover is not None
        self.play(self.mover, text)
        self._moves += 1

    def _asked(self) -> StepResult:
        """Let scripts play until an agent is to move; returns its observation and all rewards."""
        while self.mover is not None and self._who[self.mover] is None:
            self._take(self.scripted(self.mover))
        owed, self._owed = self._owed, {}
        named = ((self._who[role], reward) for role, reward in sorted(owed.items()))
        rewards = {name: reward for name, reward in named if name is not None}
        if self.mover is None:
            return StepResult(rewards=rewards, done=True)
        name = self._who[self.mover]
        assert name is not None
        notices = self._notices[self.mover]
        text = ("\n" if self.style == "full" else " ").join([*notices, self.question(self.mover)])
        notices.clear()
        return StepResult({name: Observation([Message(text)])}, rewards)
