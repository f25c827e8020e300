"""Episodes, with the rollouts of all agents, and groups of episodes of one task. An episode checks
the consistency of its rewards when it is closed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mrlm.core.errors import EpisodeError
from mrlm.core.replayed import ReplayMark
from mrlm.core.types import Rollout, Status, Task, Turn


@dataclass(slots=True)
class Episode:
    """An episode: one attempt at a task by all agents.

    Args:
        id: unique within the run and sufficient to reproduce it.
        rollouts: agent -> its rollout.
        reward: the team's reward, the sum of `step_rewards`.
        step_rewards: team reward of each joint step; `Turn.step` indexes it.
        status: `done`, `truncated` or `error`; a failed episode has no reward, instead of reward 0.
            The rewards of a done or truncated episode are consistent (`close`).
        metrics: numbers to log; reward components appear as `<agent>/<component>`.
        error: cause of a failure.
        states: `Environment.state` before each joint step, if a critic reads it.
        boards: `Environment.render` where it changed: (number of joint steps before it, board).
        greedy: it was sampled greedily, as a baseline for the others; it is not trained on.
        pruned: it ended because only a sibling was continued.
        answers: agent -> index of its answer in this combination, if combinations are played.
        policies: agent -> its policy.
        replayed: the episode that it replays with a change, and the change. Only a turn that was
            sampled instead of another is trained on; it counts in no statistics of rewards.
        missing: agents whose reward is unknown (`None`). Their turns are context: they count in no
            baseline and are not trained on.
        path: index of its branch at each branching state. Siblings of a group differ in the first
            number; a workflow that forks adds one for every fork. Turns shared with the episode it
            was forked from are context.
    """

    id: str
    task: Task
    rollouts: dict[str, Rollout] = field(default_factory=dict)
    reward: float = 0.0
    step_rewards: list[float] = field(default_factory=list)
    status: Status = "running"
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    environment: str = ""
    states: list[str | None] = field(default_factory=list)
    boards: list[tuple[int, str]] = field(default_factory=list)
    path: tuple[int, ...] = ()
    greedy: bool = False
    pruned: bool = False
    answers: dict[str, int] = field(default_factory=dict)
    policies: dict[str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    replayed: ReplayMark | None = None

    def __post_init__(self) -> None:
        if self.status != "running":
            self.close(self.status)

    @classmethod
    def recorded(
        cls,
        id: str,
        task: Task,
        rollouts: Mapping[str, Rollout],
        reward: float | None = None,
        **fields: Any,
    ) -> "Episode":
        """A finished episode of rollouts without an environment.

        Args:
            id, task, rollouts: as in `Episode`.
            reward: the team's reward, assigned to the last joint step. `None`: the team's reward of
                every joint step is the mean over the agents that act in it.
            **fields: other fields of `Episode`.
        """
        turns = [turn for rollout in rollouts.values() for turn in rollout.turns]
        steps = team_rewards(turns, reward)
        fields = {"status": "done"} | fields
        return cls(id, task, dict(rollouts), sum(steps), steps, **fields)

    def close(self, status: Status) -> "Episode":
        """End the episode. Unless it failed, its rewards are then consistent: `step_rewards` has an
        entry for every joint step in which an agent acted (0 for an incomplete one), their sum is
        `reward`, and the turns of a rollout are in the order of their steps. Raises `EpisodeError`:
        the rewards are inconsistent."""
        self.status = status
        if not self.failed:
            self._settle()
        return self

    def _settle(self) -> None:
        """Complete the rewards of joint steps with 0, check that they are consistent, and make the
        turns of agents with missing rewards context."""
        last = max([turn.step for turn in self.turns], default=-1)
        if not self.step_rewards and self.reward:
            self.step_rewards = [0.0] * max(last, 0) + [self.reward]
        rewards = self.step_rewards
        rewards += [0.0] * (last + 1 - len(rewards))
        total = sum(rewards)
        if not abs(total - self.reward) <= 1e-6 * (1 + sum(map(abs, rewards))):
            raise EpisodeError(
                f"{self._title}: step_rewards sum to {total:g}, but reward is {self.reward:g}; "
                "give one finite reward per joint step, and their sum as the reward"
            )
        for agent, rollout in self.rollouts.items():
            steps = [turn.step for turn in rollout.turns]
            if steps != sorted(steps) or (steps and steps[0] < 0):
                raise EpisodeError(
                    f"{self._title}: the turns of agent {agent!r} are of the joint steps {steps}; "
                    "Turn.step counts joint steps from 0 and must not decrease"
                )
            for turn in rollout.turns if agent in self.missing else ():
                turn.trained = False

    @property
    def _title(self) -> str:
        return f"episode {self.id!r} of task {self.task.id!r}"

    @property
    def failed(self) -> bool:
        return self.status == "error"

    @property
    def scored(self) -> bool:
        """Whether the reward of at least one acting agent is known."""
        return not self.missing or not self.missing >= self.rollouts.keys()

    @property
    def turns(self) -> list[Turn]:
        """All turns of all agents, agent by agent."""
        turns: list[Turn] = []
        for rollout in self.rollouts.values():
            turns += rollout.turns
        return turns

    @property
    def own_turns(self) -> list[Turn]:
        """The turns that are not copies from the episode which this one was forked from."""
        if len(self.path) < 2:  # it was not forked
            return self.turns
        return [turn for turn in self.turns if not any(self.path[turn.depth + 1 :])]


@dataclass(slots=True)
class Group:
    """Episodes of one task from one state, which an algorithm compares. A preference pair is a
    group of two (chosen first), a supervised row a group of one.

    Args:
        episodes: the episodes, failed ones included; `valid` are the others.
        task_id: name of the task.
    """

    episodes: list[Episode]
    task_id: str = ""

    def __iter__(self) -> Iterator[Episode]:
        return iter(self.episodes)

    def __len__(self) -> int:
        return len(self.episodes)

    @property
    def valid(self) -> list[Episode]:
        """The episodes that were sampled, did not fail and have a reward; only these count in
        statistics. Replays are not among them."""
        sampled = (one for one in self.episodes if not one.greedy and one.replayed is None)
        return [episode for episode in sampled if not episode.failed and episode.scored]

    @property
    def replays(self) -> list[Episode]:
        """The replays that did not fail and have a reward."""
        usable = (episode for episode in self.episodes if episode.replayed is not None)
        return [episode for episode in usable if not episode.failed and episode.scored]

    @property
    def greedy(self) -> Episode | None:
        """The greedy episode, if the algorithm requires one and it did not fail."""
        usable = (episode for episode in self.episodes if episode.greedy and not episode.failed)
        return next((episode for episode in usable if not episode.missing), None)

    @property
    def agents(self) -> list[str]:
        """Names of the agents that have a rollout in any episode, in order of first appearance."""
        return list(dict.fromkeys(agent for episode in self.episodes for agent in episode.rollouts))


def team_rewards(turns: Sequence[Turn], reward: float | None = None) -> list[float]:
    """The team's reward of every joint step up to the last one with turns.

    Args:
        turns: turns of all agents.
        reward: the team's reward of the whole episode, assigned to the last step. `None`: in every
            step the mean over the agents that act in it.
    """
    steps = [0.0] * (max((turn.step for turn in turns), default=0) + 1)
    if reward is not None:
        steps[-1] = reward
        return steps
    by_step: dict[int, dict[str, float]] = {}
    for turn in turns:
        agent_rewards = by_step.setdefault(turn.step, {})
        agent_rewards[turn.agent] = agent_rewards.get(turn.agent, 0.0) + turn.reward
    for step, agent_rewards in by_step.items():
        steps[step] = sum(agent_rewards.values()) / len(agent_rewards)
    return steps
