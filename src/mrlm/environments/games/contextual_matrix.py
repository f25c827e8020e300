"""Contextual matrix games: the table of rewards depends on a context, which all agents see."""

import itertools
import random
from collections.abc import Sequence
from typing import Any, Literal

from mrlm.core.board import Html, stacked
from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Reward, StepResult, Task
from mrlm.environments.games.matrix import Joint, MatrixEnvironment
from mrlm.environments.shared.games import Style, Teaches
from mrlm.environments.shared.generators import first_of
from mrlm.environments.shared.rows import agent_names, at_least, is_number, penalty, whole_number

Pay = Literal["common", "own"]
Show = Literal["context", "table"]
PARTS = (0.0, 0.25, 0.5, 0.75)
"""Rewards of joint actions other than the best one, as shares of the context's stake."""
MOST_ACTIONS = 26
MOST_CELLS: dict[str, int] = {"context": 256, "table": 32}
"""Joint actions of a table, by what is shown of it."""
STAKES = 4
"""Number of different stakes, if each task has a table of its own."""


class ContextualMatrixEnvironment(MatrixEnvironment):
    """A matrix game whose table is that of the task's context: a context is sampled for each task
    and shown to all agents, which then choose their actions at once (a contextual bandit with
    several agents).

    Every context has a stake, one of 1/n, 2/n, ..., 1 for n contexts, so that the context alone
    predicts a part of the reward, which a critic can explain. The reward of the best joint action
    is the stake, that of another one 0, 0.25, 0.5 or 0.75 of it. With `reward: own` every agent has
    a table of its own (shares up to 1), and the best joint action is that of the highest mean.

    An answer is read as in `matrix`. One that names no action costs all agents `illegal`. The
    components are `payoff` and `regret` (the highest mean of the table minus the mean of this joint
    action), both without noise, `optimal` (whether the regret is 0), and `legal`.

    Args:
        contexts: number of contexts; held-out tasks have the same ones. `null`: every task has a
            table of its own, and held-out tables are not trained on.
        num_actions: actions of every agent, letters from `A`.
        agents: names of the agents.
        reward: `common`: one table for all agents; `own`: one for each.
        noise: half the width of the uniform noise that is added to rewards; it is determined by
            the task, the round and the joint action.
        show: what the agents are shown: the number of the `context`, or the whole `table`.
        illegal: cost of an answer that names no action.
        rounds: repetitions of the game in an episode, among which the reward is divided; every
            agent sees the last joint action.
        style: `full` explains the game; `short` is terse, for small models.
        teaches: behaviour of `expert`: the `best` joint action, or `any` action.
        seed: another seed gives other tables and tasks.

    Raises:
        ConfigError: a setting that is not one of these, or a table of more than 256 joint actions
            (32, if it is shown).
    """

    reward_range: tuple[float, float] | None = (-0.25, 1.0)

    def __init__(
        self,
        contexts: int | None = 4,
        num_actions: int = 3,
        agents: Sequence[str] = ("row", "column"),
        reward: Pay = "common",
        noise: float = 0.0,
        show: Show = "context",
        illegal: float = 0.25,
        rounds: int = 1,
        style: Style = "full",
        teaches: Teaches = "best",
        seed: int = 0,
    ) -> None:
        if contexts is not None:
            whole_number(1, contexts=contexts)
        elif show != "table":
            raise ConfigError("contexts=null makes a new table for every task; set show=table")
        whole_number(2, num_actions=num_actions)
        at_least(0, noise=noise)
        names = agent_names(agents)
        cells, most = num_actions ** len(names), MOST_CELLS[show]
        if num_actions > MOST_ACTIONS or cells > most or not is_number(noise):
            raise ConfigError(
                f"num_actions={num_actions}, noise={noise!r}: at most {MOST_ACTIONS} actions, "
                f"{most} joint actions ({len(names)} agents have {cells}), and a finite noise"
            )
        self.contexts: int | None = contexts
        self.pay: Pay = reward
        self.noise: float = noise
        self.show: Show = show
        self.style: Style = style
        self.seed: int = seed
        self.num_actions: int = num_actions
        equal = _nested([0.0, 1.0], len(names), num_actions)  # replaced by a context's
        cost = -penalty("illegal", illegal)
        super().__init__("custom", names, equal, illegal=cost, rounds=rounds, teaches=teaches)
        self._begin(1 if contexts else "", "none")

    def table(self, context: int | str) -> dict[Joint, tuple[float, ...]]:
        """Joint action -> reward of every agent before noise.

        Args:
            context: its number from 1; for a table of a task's own, its key.
        """
        rng = random.Random(f"contextual_matrix/{self.seed}/{context}")
        stake = rng.randint(1, STAKES) / STAKES
        if self.contexts is not None:
            order = list(range(1, self.contexts + 1))
            random.Random(f"contextual_matrix/{self.seed}").shuffle(order)
            stake = order[int(context) - 1] / self.contexts
        joints = list(itertools.product(range(self.num_actions), repeat=len(self.agents)))
        best = rng.choice(joints)
        rewards: dict[Joint, tuple[float, ...]] = {}
        for joint in joints:
            if self.pay == "own":
                shares = [rng.choice((*PARTS, 1.0)) for _ in self.agents]
                shares[0] = 1.0 if joint == best else shares[0]
            else:
                shares = [1.0 if joint == best else rng.choice(PARTS)] * len(self.agents)
            rewards[joint] = tuple(stake * share for share in shares)
        return rewards

    def task(self, seed: int, split: Split = "train") -> Task:
        name = f"contextual_matrix-{self.seed}-{split}-{seed}"
        rng = random.Random(name)
        if self.contexts is not None:
            context: int | str = rng.randint(1, self.contexts)
        else:
            context = first_of(split, lambda: f"{rng.random()}", lambda key: str(self.table(key)))
        env = self.spawn()
        env._begin(context, name)
        prompt = [Message(env.question(self.agents[0]))]
        return Task(name, prompt, seed=seed, info={"context": context})

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        task = task or self.task(seed or 0)
        context = task.info.get("context")
        text = isinstance(context, str)
        valid = text if self.contexts is None else context in range(1, self.contexts + 1)
        if not valid:
            raise ConfigError(f"contextual_matrix: task {task.id!r} has the context {context!r}")
        self._begin(context, task.id)
        return super().reset(task, seed)

    def step(self, actions: dict[str, Message]) -> StepResult:
        result = super().step(actions)
        joint = tuple(self.words.index(w) for w in self._played[-1] if w in self.words)
        legal = len(joint) == len(self.agents)
        drawn = random.Random(f"{self._name}/{len(self._played)}/{joint}").uniform(-1, 1)
        for position, agent in enumerate(self.agents):
            payoff = self._own[joint][position] if legal else 0.0
            value = payoff + self.noise * drawn if legal else self.illegal
            regret = self.payoffs[self.best] - (self.payoffs[joint] if legal else 0.0)
            parts = {"payoff": payoff, "regret": regret, "optimal": float(regret == 0)}
            parts["legal"] = result.rewards[agent].components["legal"]
            shares = {name: part / self.rounds for name, part in parts.items()}
            result.rewards[agent] = Reward(value / self.rounds, shares)
        return result

    def question(self, agent: str) -> str:
        """The prompt of an agent."""
        words = self._words_of(agent)
        if self.style == "short":
            return f"{agent} {self._listed_table() or self.context}: {' '.join(words)}?"
        whose = "the same for all" if self.pay == "common" else "one for each of you"
        lines = [
            f"You are {agent}, one of {len(self.agents)} agents ({', '.join(self.agents)}). Each "
            "chooses an action without seeing the choices of the others; the joint action decides "
            f"the reward, {whose}."
        ]
        if self.show == "table":
            lines.append(f"Rewards by joint action, in the same order: {self._listed_table()}.")
        else:
            lines.append(
                f"This is game {self.context} of {self.contexts}; each has its own rewards."
            )
        lines.append(f"Answer with one action: {', '.join(words)}.")
        return "\n".join(lines)

    def state(self) -> str:
        return f"context {self.context}; {super().state()}"

    def render(self, agent: str | None = None) -> Html | None:
        """The context, and the table of mean rewards with the last joint action; an agent sees the
        table only if its prompt shows it."""
        board = super().render(None if self.show == "table" else agent)
        number = f"context {self.context} of {self.contexts}" if self.contexts else ""
        return stacked(number, board or "") if number or board else None

    def _begin(self, context: Any, name: str) -> None:
        self.context: int | str = context
        self._name = name
        self._own = self.table(context)
        self.payoffs = {joint: sum(all_) / len(all_) for joint, all_ in self._own.items()}
        self.best = max(self.payoffs, key=lambda joint: self.payoffs[joint])

    def _listed_table(self) -> str:
        """The table in a line, if the agents are shown it."""
        if self.show != "table":
            return ""
        lines = []
        for joint, rewards in self._own.items():
            numbers = rewards[:1] if self.pay == "common" else rewards
            action = "".join(self.words[index] for index in joint)
            lines.append(f"{action} {' '.join(f'{number:.4g}' for number in numbers)}")
        return ", ".join(lines)


def _nested(row: list[float], agents: int, actions: int) -> Any:
    """A table of so many agents and actions, made of one row."""
    if agents == 1:
        return (row * actions)[:actions]
    return [_nested(row, agents - 1, actions)] * actions


PLUGIN = ContextualMatrixEnvironment
