"""The changes of an analysis by replay: every turn and every set of agents, as branches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mrlm.core.episodes import Episode
from mrlm.core.errors import ConfigError
from mrlm.core.replayed import SHAPLEY_AGENTS, coalitions
from mrlm.play.sources.branches import Script, TurnPlace
from mrlm.replays.effects import Outcomes
from mrlm.replays.session import ForkSession
from mrlm.training.effects import influences


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an analysis.

    Args:
        episodes: branches that are played, with the one that checks the replay.
        tokens: at most sampled, if turns are as long as in the record.
        passes: forward passes for the influence.
        seconds: at most, at the speed of the check, which is not batched.
    """

    episodes: int
    tokens: int
    passes: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"cost: {self.episodes} episodes, about {self.tokens:,} tokens, {self.passes} forward "
            f"passes, at most {self.seconds:.3g} s"
        )


@dataclass(slots=True)
class Played:
    """Outcomes by turn and by set of replaced agents, and influence by turn."""

    turns: dict[TurnPlace, Outcomes]
    sets: dict[frozenset[str], Outcomes]
    influence: dict[TurnPlace, dict[str, float | None]]
    played: int


class Replacements:
    """The changes of an analysis, each as scripts of its branches.

    Args:
        session: of the episode.
        agent: whose turns are changed, or `all`.
        n: branches of every change.
        change: how turns are changed.
    """

    def __init__(self, session: ForkSession, agent: str, n: int, change: Script) -> None:
        agents = list(dict.fromkeys(name for name, _ in session.turns))
        if agent != "all" and agent not in agents:
            raise ConfigError(
                f"episode {session.id!r} has no agent {agent!r}; its agents are {', '.join(agents)}"
            )
        if n < 1:
            raise ConfigError(f"n={n} must be at least 1")
        self.session: ForkSession = session
        self.n: int = n
        self.change: Script = change
        self.agents: list[str] = agents if agent == "all" else [agent]
        self.whole: bool = agent == "all" and len(agents) <= SHAPLEY_AGENTS
        self.places: list[TurnPlace] = [
            location for location in session.turns if location[0] in self.agents
        ]
        self.sets = coalitions(self.agents)
        count = {name: sum(turn[0] == name for turn in session.turns) for name in agents}
        self.once: set[TurnPlace] = {
            location for location in self.places if count[location[0]] == 1
        }
        """Turns that are all of their agent: the turn and the agent are one change."""
        self.heard: list[TurnPlace] = [
            p
            for p in self.places
            if any(session.when(p) < session.when(q) and p[0] != q[0] for q in session.turns)
        ]
        """Turns after which another agent speaks."""

    def scripts(self) -> dict[TurnPlace | frozenset[str], list[Script]]:
        """Change -> its branches."""
        one = {
            location: replace(self.change, turns=frozenset([location]))
            for location in self.places
            if location not in self.once
        }
        several = {members: replace(self.change, agents=members) for members in self.sets}
        return {
            key: [replace(script, number=number) for number in range(self.n)]
            for key, script in {**one, **several}.items()
        }

    def silences(self) -> dict[TurnPlace, Script]:
        """Turn -> the branch in which it is empty."""
        empty = Script(how="text", own_rest=False)
        return {location: replace(empty, turns=frozenset([location])) for location in self.heard}

    def cost(self, speed: float) -> Cost:
        """The cost of all branches, at so many tokens a second."""
        scripts = [item for several in self.scripts().values() for item in several]
        scripts += self.silences().values()
        tokens = sum(self._tokens(script) for script in scripts)
        rewritten = sum(len(self._readers(location)) for location in self.heard)
        return Cost(len(scripts) + 1, tokens, 2 * rewritten, tokens / speed)

    def _readers(self, location: TurnPlace) -> set[str]:
        when = self.session.when
        later = (turn for turn in self.session.turns if when(turn) > when(location))
        return {agent for agent, _ in later if agent != location[0]}

    def _tokens(self, script: Script) -> int:
        """Most tokens that a branch samples: those of the changed turn and of all later ones."""
        past = self.session.past
        start = script.start(past)
        return sum(
            len(turn.completion.token_ids)
            for location, turn in past.items()
            if start is not None
            and (turn.when > start or (script.changes(location) and script.how == "sample"))
        )

    def play(self, check: Episode) -> Played:
        """Plays all branches at once."""
        scripts, silences = self.scripts(), self.silences()
        everything = [script for several in scripts.values() for script in several]
        everything += silences.values()
        episodes = iter(self.session.play(everything))
        branches = {key: [next(episodes) for _ in several] for key, several in scripts.items()}
        sets = {key: self._outcomes(branches[key], key) for key in self.sets}
        turns = {
            location: sets[frozenset([location[0]])]
            if location in self.once
            else self._outcomes(branches[location], frozenset([location]))
            for location in self.places
        }
        recording = (self.session.past, self.session.policies)
        effects = {
            location: influences(check, next(episodes), location, *recording)
            for location in silences
        }
        return Played(turns, sets, effects, len(everything) + 1)

    def _outcomes(
        self, episodes: Sequence[Episode], changed: frozenset[str] | frozenset[TurnPlace]
    ) -> Outcomes:
        """Outcomes of branches, and how many have the recorded turns in spite of the change."""
        past = self.session.past
        same = [
            all(
                turn.completion_ids == past[turn.agent, turn.index].completion.token_ids
                for turn in episode.turns
                if (turn.agent in changed or (turn.agent, turn.index) in changed)
                and (turn.agent, turn.index) in past
            )
            for episode in episodes
        ]
        rewards = [None if branch.failed else branch.reward for branch in episodes]
        return Outcomes(rewards, sum(same))
