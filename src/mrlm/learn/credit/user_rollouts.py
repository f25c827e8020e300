"""Rollouts that a user brings, written by hand or recorded by a `Generator`, as the groups that
algorithms compare. Episodes that were played come through unchanged."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mrlm.core.chat import Chat
from mrlm.core.episodes import Episode, Group, team_rewards
from mrlm.core.errors import ConfigError
from mrlm.core.transcripts import transcript_turns
from mrlm.core.types import Role, Rollout, Task, Turn
from mrlm.learn.bases.spec import SamplingPlan

log: logging.Logger = logging.getLogger("mrlm")

Play = Rollout | Mapping[str, Rollout] | Episode
"""One play: a transcript of one or several speakers, a rollout for each agent, or an episode as a
trainer recorded it."""
TeamReward = float | None | Mapping[str, float | None]
"""Of a play: a number that every agent gets for its last turn, or agent -> its own; the team's is
their mean, and counts in the last joint step. `None` is a reward that is missing."""
Sources = list[tuple[Rollout, list[Turn]]]
"""Rollouts that a user gave, each with the turns that were read from it."""
COMPUTED = (
    "advantages",
    "returns",
    "values",
    "ref_logprobs",
    "old_logprobs",
    "new_logprobs",
    "full_kl",
    "entropies",
)
"""Columns of a turn that are computed again."""


@dataclass(frozen=True, slots=True)
class RolloutReader:
    """Reads rollouts for one policy.

    Args:
        policy: its name.
        chat: renders what was written by hand.
        agents: whose messages are trained on; everybody's when `None`.
    """

    policy: str
    chat: Chat
    agents: frozenset[str] | None

    def groups(
        self,
        plays: Sequence[Play | Group],
        rewards: Sequence[TeamReward] | None = None,
        group_by: Callable[[Any], Any] | None = None,
    ) -> tuple[list[Group], Sources]:
        """Groups of episodes, and what was read from every rollout.

        Args:
            plays: what was played; a `Group` stays one.
            rewards: one per play; the turns' own rewards when `None`.
            group_by: key of the plays that are compared.

        Raises:
            ConfigError: rewards of the wrong number, or none that can be used.
        """
        check_rewards(rewards, len(plays), "rollout")
        found: dict[Any, list[Episode]] = {}
        made: list[Episode] = []
        sources: Sources = []
        for index, play in enumerate(plays):
            if isinstance(play, Group):
                if rewards is not None:
                    raise ConfigError(
                        f"rollouts[{index}] is a group, whose episodes have their rewards; leave "
                        "`rewards` out, or give its episodes"
                    )
                found[index, play.task_id] = [self._played(each, sources) for each in play]
                continue
            key = group_by(play) if group_by else opening_of(play)
            if isinstance(play, Episode):
                episode = self._played(play, sources)
            else:
                episode = self._episode(play, str(index), Task(str(key)), sources)
            if rewards is not None:
                episode = booked(episode, rewards[index])
            made.append(episode)
            found.setdefault(key, []).append(episode)
        check_usable(made, rewards)
        return [grouped(episodes) for episodes in found.values()], sources

    def _episode(
        self, play: Rollout | Mapping[str, Rollout], name: str, task: Task, sources: Sources
    ) -> Episode:
        """A play as an episode: a rollout for every agent that speaks in it."""
        given = {play.agent or "agent": play} if isinstance(play, Rollout) else dict(play)
        parts: dict[str, Rollout] = {}
        for agent, rollout in given.items():
            alone = not isinstance(play, Rollout)
            turns = self.turns(replace(rollout, agent=agent) if alone else rollout)
            sources.append((rollout, turns))
            spoken: dict[str, list[Turn]] = {}
            for turn in turns:
                if alone:  # whatever a generator called it
                    turn.agent, turn.trained = agent, self._trains(agent)
                spoken.setdefault(turn.agent, []).append(turn)
            for speaker, own in (spoken or {agent: []}).items():
                parts[speaker] = replace(rollout, agent=speaker, policy=self.policy, turns=own)
        return Episode.recorded(name, task, parts)

    def _played(self, episode: Episode, sources: Sources) -> Episode:
        """A copy of an episode, to be credited again."""
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
        """The turns an engine recorded, and one per MODEL message that was written by hand."""
        links = [(message.role, message.turn) for message in rollout.messages]
        by_hand = (Role.ASSISTANT, None) in links
        turns = list(rollout.turns)
        # where no message is linked to a turn they are a view of those that were recorded
        if by_hand and (not turns or any(turn is not None for _, turn in links)):
            name = rollout.agent or "agent"
            written = transcript_turns(self.chat, rollout.messages, name, self.policy, self.agents)
            turns += [
                turn for turn in written if turn.message is not None and turn.message.turn is None
            ]
            turns.sort(key=lambda turn: len(turn.prompt_ids))
            if rollout.turns:  # neither kind knows of the other
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


def as_planned(groups: list[Group], plan: SamplingPlan, algorithm: str) -> list[Group]:
    """Groups as an algorithm requires them.

    Raises:
        ConfigError: it cannot compare what they hold.
    """
    if plan.siblings:
        groups = _compared(groups, algorithm)
    if plan.tree:
        _check_trees(groups, algorithm)
    return _with_greedy(groups, algorithm) if plan.greedy else groups


def _compared(groups: list[Group], algorithm: str) -> list[Group]:
    """Groups that an algorithm can compare inside: all as one, where each has a single member.

    Raises:
        ConfigError: there is only one rollout.
    """
    if any(len(group) > 1 for group in groups):
        return groups
    if len(groups) == 1:
        raise ConfigError(
            f"{algorithm} compares rollouts with each other, and there is only one; "
            "give several rollouts of the same question"
        )
    log.info("no two rollouts start alike, so all %d are compared as one group", len(groups))
    return [grouped([episode for group in groups for episode in group])]


def _check_trees(groups: Sequence[Group], algorithm: str) -> None:
    """Refuse plays of several turns where an algorithm compares the answers to one state, unless
    they were forked from one another.

    Raises:
        ConfigError: siblings read different prompts from their second turn on.
    """
    for episode in (episode for group in groups for episode in group):
        if len(episode.path) < 2 and any(turn.step for turn in episode.turns):
            raise ConfigError(
                f"{algorithm} compares several answers to one state, and from their second turn on "
                "these rollouts have a state each; give episodes of the workflow `tree`, or use "
                "grpo or magrpo"
            )


def _with_greedy(groups: list[Group], algorithm: str) -> list[Group]:
    """Groups whose rollouts that were generated at temperature 0 are what the others are compared
    with; greedy episodes are given no credit.

    Raises:
        ConfigError: a group has none, or nothing else.
    """
    for group in groups:
        for episode in group:
            turns = list(episode.turns)
            episode.greedy |= bool(turns) and all(turn.sampling.greedy for turn in turns)
        question = group.task_id[:60]
        if not any(episode.greedy for episode in group):
            raise ConfigError(
                f"{algorithm} compares the rollouts of a question with what the policy does at "
                f"temperature 0, and no rollout of {question!r} was generated so; add one by "
                "Generator(..., temperature=0), with its reward"
            )
        if not group.valid:
            raise ConfigError(
                f"{algorithm}: all rollouts of {question!r} were generated at temperature 0, which "
                "is what others are compared with; add sampled ones"
            )
    return groups


def grouped(episodes: list[Episode]) -> Group:
    """A group, in which every episode that was not forked is a try of its own."""
    for place, episode in enumerate(episodes):
        if len(episode.path) < 2:
            episode.path = (place,)
    return Group(episodes, episodes[0].task.id if episodes else "")


def booked(episode: Episode, reward: TeamReward) -> Episode:
    """The episode with a reward instead of those of its turns. One that is missing takes the agents
    concerned out of baselines and training, and one that is not finite makes the episode a failed
    one.

    Raises:
        ConfigError: it names an agent that has no part in the episode.
    """
    rollouts = episode.rollouts
    own = dict(reward) if isinstance(reward, Mapping) else dict.fromkeys(rollouts, reward)
    for agent in own.keys() - rollouts.keys():
        raise ConfigError(
            f"the reward of episode {episode.id!r} names agent {agent!r}, which has no turn there"
        )
    known = {agent: float(x) for agent, x in own.items() if x is not None}
    wrong = [f"{agent}: {x}" for agent, x in known.items() if not math.isfinite(x)]
    for agent, rollout in rollouts.items():
        for turn in rollout.turns:
            turn.reward = 0.0
        if rollout.turns and not wrong:
            rollout.turns[-1].reward = known.get(agent, 0.0)
    team = sum(known.values()) / len(known) if known and not wrong else 0.0
    steps = team_rewards(list(episode.turns), team)
    steps = [0.0] * (len(episode.step_rewards) - len(steps)) + steps
    return replace(
        episode,
        reward=team,
        step_rewards=steps,
        status="error" if wrong else episode.status,
        error=f"its reward is not finite ({', '.join(wrong)})" if wrong else episode.error,
        missing=frozenset(own.keys() - known.keys() if known else rollouts),
    )


def check_rewards(rewards: Sequence[object] | None, count: int, what: str) -> None:
    """Refuse rewards of another number than the plays."""
    if rewards is not None and len(rewards) != count:
        raise ConfigError(f"{count} {what}s but {len(rewards)} rewards; give one reward per {what}")


def check_usable(episodes: Sequence[Episode], rewards: Sequence[object] | None) -> None:
    """Name the first reward that is not finite, once.

    Raises:
        ConfigError: no reward can be used.
    """
    if rewards is None:
        return
    wrong = [place for place, episode in enumerate(episodes) if episode.failed and episode.error]
    first = f"reward {wrong[0]} is {rewards[wrong[0]]}" if wrong else "all of them are None"
    if episodes and not any(not each.failed and each.scored for each in episodes):
        raise ConfigError(f"no reward is a finite number: {first}; rewards must be finite numbers")
    if wrong:
        log.warning(
            "%s; %d of %d plays without a finite reward are left out",
            first,
            len(wrong),
            len(episodes),
        )


def opening_of(play: Play) -> Any:
    """What plays must share to be compared: their task, else everything before the first MODEL
    message."""
    if isinstance(play, Episode):
        return play.task.id
    if isinstance(play, Mapping):
        return tuple((agent, opening_of(rollout)) for agent, rollout in play.items())
    if play.task_id is not None:
        return play.task_id
    opening = []
    for message in play.messages:
        if message.role is Role.ASSISTANT:
            break
        opening.append((str(message.role), message.content))
    return tuple(opening)
