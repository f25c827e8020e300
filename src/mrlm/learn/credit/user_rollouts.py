"""Conversion of user rollouts, written by hand or recorded by a `Generator`, into groups for
algorithms. Episodes recorded by a trainer are passed through unchanged."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, ClassVar

from mrlm.core.chat import Chat
from mrlm.core.episodes import Episode, Group, team_rewards
from mrlm.core.errors import ConfigError
from mrlm.core.log import log
from mrlm.core.transcripts import transcript_turns
from mrlm.core.types import COMPUTED, Role, Rollout, Task, Turn
from mrlm.learn.bases.spec import SamplingPlan
from mrlm.learn.policy.policy import Policy

Play = Rollout | Mapping[str, Rollout] | Episode
"""One episode: a transcript of one or several agents, one rollout per agent, or an episode recorded
by a trainer."""
TeamReward = float | None | Mapping[str, float | None]
"""Reward of an episode: a number for every agent's last turn, or agent -> its own. The team reward
is their mean, in the last joint step. `None` is a missing reward."""
Sources = list[tuple[Rollout, list[Turn]]]
"""User rollouts, each with the turns read from it."""


class PlayReader:
    """Base of readers of user rollouts."""

    unit: ClassVar[str] = "rollout"
    """Name of a play in messages."""

    def groups(
        self,
        plays: Sequence[Play | Group],
        rewards: Sequence[TeamReward] | None = None,
        group_by: Callable[[Any], Any] | None = None,
    ) -> tuple[list[Group], Sources]:
        """Groups of episodes, and the turns read from every rollout. A `Group` stays one; without
        `rewards` (one per play) the turns keep their own; `group_by` gives the key of plays that
        are compared. An error for a wrong number of rewards, or none that is usable."""
        if rewards is not None and len(rewards) != len(plays):
            raise ConfigError(
                f"{len(plays)} {self.unit}s but {len(rewards)} rewards; "
                f"give one reward per {self.unit}"
            )
        by_key: dict[Any, list[Episode]] = {}
        made: list[Episode] = []
        sources: Sources = []
        for index, play in enumerate(plays):
            if isinstance(play, Group):
                if rewards is not None:
                    raise ConfigError(
                        f"{self.unit}s[{index}] is a group, whose episodes have their rewards; "
                        "omit `rewards`, or give its episodes"
                    )
                read = [self.episode(attempt, index, "", sources) for attempt in play]
                by_key[index, play.task_id] = read
                continue
            key = group_by(play) if group_by else opening_of(play)
            episode = self.episode(play, index, str(key), sources)
            if rewards is not None:
                episode = booked(episode, rewards[index])
            made.append(episode)
            by_key.setdefault(key, []).append(episode)
        check_usable(made, rewards)
        return [grouped(episodes) for episodes in by_key.values()], sources

    def episode(self, play: Play, index: int, task: str, sources: Sources) -> Episode:
        """A play as an episode without credit; adds turns read from each rollout to `sources`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class RolloutReader(PlayReader):
    """Reads user rollouts for one policy; `agents` are those that are trained, all if `None`."""

    policy: str
    chat: Chat
    agents: frozenset[str] | None

    def episode(self, play: Play, index: int, task: str, sources: Sources) -> Episode:
        if isinstance(play, Episode):
            return self._played(play, sources)
        rollouts = {play.agent or "agent": play} if isinstance(play, Rollout) else dict(play)
        parts: dict[str, Rollout] = {}
        for agent, rollout in rollouts.items():
            alone = not isinstance(play, Rollout)
            turns = self.turns(replace(rollout, agent=agent) if alone else rollout)
            sources.append((rollout, turns))
            spoken: dict[str, list[Turn]] = {}
            for turn in turns:
                if alone:  # the key overrides the generator's agent name
                    turn.agent, turn.trained = agent, self._trains(agent)
                spoken.setdefault(turn.agent, []).append(turn)
            for speaker, agent_turns in (spoken or {agent: []}).items():
                parts[speaker] = replace(
                    rollout, agent=speaker, policy=self.policy, turns=agent_turns
                )
        return Episode.recorded(str(index), Task(task), parts)

    def _played(self, episode: Episode, sources: Sources) -> Episode:
        """A copy of an episode with credit cleared."""
        parts: dict[str, Rollout] = {}
        for agent, rollout in episode.rollouts.items():
            trained = self._trains(agent)
            turns = [
                replace(
                    turn,
                    trained=turn.trained and trained,
                    policy=self.policy if turn.trained and trained else turn.policy,
                    **dict.fromkeys(COMPUTED),
                )
                for turn in rollout.turns
            ]
            parts[agent] = replace(rollout, turns=turns)
            sources.append((rollout, turns))
        return replace(episode, rollouts=parts, step_rewards=list(episode.step_rewards))

    def turns(self, rollout: Rollout) -> list[Turn]:
        """The turns recorded by an engine, plus one per hand-written MODEL message."""
        links = [(message.role, message.turn) for message in rollout.messages]
        by_hand = (Role.ASSISTANT, None) in links
        turns = list(rollout.turns)
        # unlinked messages are a view of the recorded turns
        if by_hand and (not turns or any(turn is not None for _, turn in links)):
            name = rollout.agent or "agent"
            written = transcript_turns(self.chat, rollout.messages, name, self.policy, self.agents)
            turns += [x for x in written if x.message is not None and x.message.turn is None]
            turns.sort(key=lambda turn: len(turn.prompt_ids))
            if rollout.turns:  # number recorded and hand-written turns together
                for step, turn in enumerate(turns):
                    turn.step = step
        for turn in turns:
            turn.policy = self.policy
            for name in COMPUTED:
                setattr(turn, name, None)
            turn.trained = self._trains(turn.agent)
        return turns

    def _trains(self, agent: str) -> bool:
        return self.agents is None or agent in self.agents


@dataclass(frozen=True, slots=True)
class TeamReader(PlayReader):
    """Reads episodes for the policies of a team, by agent; `trained` are the agents that learn."""

    policies: Mapping[str, Policy]
    trained: Collection[str]

    unit = "episode"

    def episode(self, play: Play, index: int, task: str, sources: Sources) -> Episode:
        originals = play.rollouts if isinstance(play, Episode) else {}
        rollouts: dict[str, Rollout] = {}
        for agent, part in self._parts(play, index).items():
            turns = self._turns(agent, part, shared=isinstance(play, Rollout))
            sources.append((part, turns))
            rollout, policy = originals.get(agent, Rollout()), self.policies[agent].name
            rollouts[agent] = replace(rollout, agent=agent, policy=policy, turns=turns)
        if isinstance(play, Episode):
            return replace(play, rollouts=rollouts, step_rewards=list(play.step_rewards))
        return Episode.recorded(str(index), Task(task), rollouts)

    def _parts(self, played: Play, index: int) -> dict[str, Rollout]:
        """Agent -> the rollout that its turns are read from."""
        if isinstance(played, Rollout):
            spoke = [message.agent for message in played.messages if message.role == "assistant"]
            if None in spoke:
                raise ConfigError(
                    f"episode {index}: a transcript of a team needs the agent of every MODEL "
                    "message: Message(text, MessageType.MODEL, agent=name)"
                )
            parts = {str(agent): played for agent in dict.fromkeys(spoke)}
        else:
            parts = dict(played.rollouts if isinstance(played, Episode) else played)
        unknown = [agent for agent in parts if agent not in self.policies]
        if unknown:
            raise ConfigError(
                f"episode {index}: agent {unknown[0]!r} is not in the team "
                f"({', '.join(self.policies)}); give its model to TeamLearner, and trained=[...] "
                "if it is not to be trained"
            )
        return parts

    def _turns(self, agent: str, rollout: Rollout, shared: bool) -> list[Turn]:
        """The turns of an agent; `shared`: the rollout is a transcript of several agents."""
        policy = self.policies[agent]
        trained = {id(turn): turn.trained for turn in rollout.turns}
        named = rollout if shared else replace(rollout, agent=agent)
        turns = RolloutReader(policy.name, policy.chat, None).turns(named)
        agent_turns = [turn for turn in turns if turn.agent == agent or not shared]
        for turn in agent_turns:
            turn.agent = agent
            turn.trained = agent in self.trained and trained.get(id(turn), True)
        return agent_turns


def as_planned(groups: list[Group], plan: SamplingPlan, algorithm: str) -> list[Group]:
    """Groups in the form that an algorithm requires. Raises `ConfigError`: it cannot compare them,
    or it needs replays."""
    if plan.siblings:
        groups = _compared(groups, algorithm)
    for episode in (episode for group in groups for episode in group):
        # answers to one state are compared
        if plan.tree and len(episode.path) < 2 and any(turn.step for turn in episode.turns):
            raise ConfigError(
                f"{algorithm} compares several answers to one state, but from their second turn "
                "on these rollouts have different states; give episodes of the workflow `tree`, or "
                "use grpo or magrpo"
            )
    if plan.replays is not None and not any(group.replays for group in groups):
        raise ConfigError(
            f"{algorithm} gives credit by replays of episodes with a decision changed, which a "
            "loop of your own does not play; use `mrlm train` or a trainer, or grpo or magrpo"
        )
    if plan.others is not None:
        raise ConfigError(
            f"{algorithm}: lmbda lets others play tasks, which a loop of your own does not; set "
            "lmbda=1 and give their rollouts, or use a trainer"
        )
    return _with_greedy(groups, algorithm) if plan.greedy else groups


def _compared(groups: list[Group], algorithm: str) -> list[Group]:
    """Groups that an algorithm can compare: a single group of all, if each has one member."""
    if any(len(group) > 1 for group in groups):
        return groups
    if len(groups) == 1:
        raise ConfigError(
            f"{algorithm} compares rollouts with each other, and there is only one; "
            "give several rollouts of the same question"
        )
    log.info("no two rollouts start alike, so all %d are compared as one group", len(groups))
    return [grouped([episode for group in groups for episode in group])]


def _with_greedy(groups: list[Group], algorithm: str) -> list[Group]:
    """Groups with rollouts at temperature 0 as the baseline; these get no credit."""
    for group in groups:
        for episode in group:
            turns = list(episode.turns)
            episode.greedy |= bool(turns) and all(turn.sampling.greedy for turn in turns)
        question = group.task_id[:60]
        if not any(episode.greedy for episode in group):
            raise ConfigError(
                f"{algorithm} compares the rollouts of a question with a rollout at temperature 0, "
                f"but {question!r} has none; add one by Generator(..., temperature=0), with its "
                "reward"
            )
        if not group.valid:
            raise ConfigError(
                f"{algorithm}: all rollouts of {question!r} were generated at temperature 0, the "
                "baseline of sampled ones; add rollouts at a higher temperature"
            )
    return groups


def grouped(episodes: list[Episode]) -> Group:
    """A group in which every episode that was not forked is a separate attempt."""
    for index, episode in enumerate(episodes):
        if len(episode.path) < 2:
            episode.path = (index,)
    return Group(episodes, episodes[0].task.id if episodes else "")


def booked(episode: Episode, reward: TeamReward) -> Episode:
    """The episode with a reward instead of those of its turns. Agents with a missing reward are not
    trained; a non-finite one makes the episode a failed one. Raises `ConfigError`: it names an
    agent without a turn."""
    rollouts = episode.rollouts
    by_agent = dict(reward) if isinstance(reward, Mapping) else dict.fromkeys(rollouts, reward)
    for agent in by_agent.keys() - rollouts.keys():
        raise ConfigError(
            f"the reward of episode {episode.id!r} names agent {agent!r}, which has no turn there"
        )
    rewards = {agent: float(x) for agent, x in by_agent.items() if x is not None}
    wrong = [f"{agent}: {x}" for agent, x in rewards.items() if not math.isfinite(x)]
    for agent, rollout in rollouts.items():
        for turn in rollout.turns:
            turn.reward = 0.0
        if rollout.turns and not wrong:
            rollout.turns[-1].reward = rewards.get(agent, 0.0)
    team = sum(rewards.values()) / len(rewards) if rewards and not wrong else 0.0
    steps = team_rewards(list(episode.turns), team)
    steps = [0.0] * (len(episode.step_rewards) - len(steps)) + steps
    return replace(
        episode,
        reward=team,
        step_rewards=steps,
        status="error" if wrong else episode.status,
        error=f"its reward is not finite ({', '.join(wrong)})" if wrong else episode.error,
        missing=frozenset(by_agent.keys() - rewards.keys() if rewards else rollouts),
    )


def check_usable(episodes: Sequence[Episode], rewards: Sequence[object] | None) -> None:
    """Logs the first reward that is not finite. Raises `ConfigError`: none is."""
    if rewards is None:
        return
    wrong = [index for index, episode in enumerate(episodes) if episode.failed and episode.error]
    first = f"reward {wrong[0]} is {rewards[wrong[0]]}" if wrong else "all of them are None"
    if episodes and not any(not other.failed and other.scored for other in episodes):
        raise ConfigError(f"no reward is a finite number: {first}; rewards must be finite numbers")
    if wrong:
        text = "%s; %d of %d rollouts without a finite reward are skipped"
        log.warning(text, first, len(wrong), len(episodes))


def opening_of(play: Play) -> Any:
    """The key that compared plays share: their task, else the text before the first MODEL one."""
    if isinstance(play, Episode):
        return play.task.id
    if isinstance(play, Mapping):
        return tuple((agent, opening_of(rollout)) for agent, rollout in play.items())
    if play.task_id is not None:
        return play.task_id
    opening = takewhile(lambda message: message.role is not Role.ASSISTANT, play.messages)
    return tuple((str(message.role), message.content) for message in opening)
