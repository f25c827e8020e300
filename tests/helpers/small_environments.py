"""Environments of a few lines that configs name."""

from benchmarks.worlds import reward_of

from mrlm.core.environment import Environment
from mrlm.core.types import Message, Observation, Reward, StepResult, Task


class Sums(Environment):
    """Every seat answers one question; what all say is added up, letter by letter, and the team
    earns the rest of that after a division."""

    blocking = False

    def __init__(self, agents: tuple[str, ...] | list[str] = ("agent",)) -> None:
        self.agents = tuple(agents)

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        said = Observation([Message(f"{(seed or 0) % 5}?")])
        return StepResult(dict.fromkeys(self.agents, said))

    def step(self, actions: dict[str, Message]) -> StepResult:
        text = "".join(message.content for message in actions.values())
        paid = Reward(sum(map(ord, text)) % 101 / 100)
        return StepResult(rewards=dict.fromkeys(self.agents, paid), done=True)


class Higher(Environment):
    """Both speak at once; whose first letter comes later takes 1 from the other."""

    agents = ("first", "second")
    max_turns = 1

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        return StepResult({name: Observation([Message(f"{seed}?")]) for name in self.agents})

    def step(self, actions: dict[str, Message]) -> StepResult:
        first, second = (actions[name].content[:1] for name in self.agents)
        won = float((first > second) - (first < second))
        return StepResult({}, {"first": Reward(won), "second": Reward(-won)}, done=True)


class Rounds(Environment):
    """All agents speak at once, for some rounds; every joint answer has another reward."""

    blocking = False

    def __init__(self, rounds: int = 1, num_agents: int = 1, reward: str = "dense") -> None:
        self.agents: tuple[str, ...] = ("a", "b")[:num_agents]
        self.rounds = self.max_turns = rounds
        self.reward = reward

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.said: list[str] = []
        return StepResult(dict.fromkeys(self.agents, Observation([Message(f"A {seed}")])))

    def step(self, actions: dict[str, Message]) -> StepResult:
        self.said.append("/".join(actions[agent].content for agent in self.agents))
        done = len(self.said) == self.rounds
        rewards = {}
        if done or self.reward == "dense":
            text = " ".join(self.said)
            rewards = {agent: Reward(reward_of(f"{agent}: {text}")) for agent in self.agents}
        seen = {} if done else dict.fromkeys(self.agents, Observation([Message("B?")]))
        return StepResult(seen, rewards, done=done)
