"""Population self-play: snapshots of a run's policies are saved, played against in matches and
rated. Without a section `opponents`, nothing here has an effect.

A snapshot is a folder; to play, it is loaded into an *opponent policy*, a frozen policy that the
engines treat like any other: an adapter beside those of the base, or a whole model, of which there
is a fixed number. A run with a hundred snapshots therefore holds no more weights than one with two.
"""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from mrlm.config import OpponentsConfig
from mrlm.core.episodes import Group
from mrlm.core.process_group import ALONE, Peers
from mrlm.core.statistics import Interval
from mrlm.core.timing import span
from mrlm.learn.checkpoint import write_json, writing
from mrlm.learn.frozen import Frozen
from mrlm.learn.policy.copies import adopt
from mrlm.learn.policy.policy import Policy
from mrlm.play.agent import AgentSettings, seed_of
from mrlm.play.engine import Engine
from mrlm.play.sources.play import Play
from mrlm.play.sources.task_sampler import EnvironmentSpec
from mrlm.selfplay.matchmaking import (
    MatchResult,
    drawn,
    loss_rate,
    match_number,
    player_name,
    rated_agents,
    results_of,
    with_opponents,
)
from mrlm.selfplay.ratings import MovingRatings, Results, fitted, record, report, shown_players
from mrlm.selfplay.snapshots import PastPlayer, SnapshotFolder, members_of, thinned

SURE = 2.0
"""Standard errors from even by which one of two players is the better one."""
RATINGS = "ratings.json"
MEMORY = 0.99
"""Decay per game of the weight of older games in the fraction lost (AlphaStar's)."""
Exchange = Callable[[Sequence[Frozen]], Awaitable[None]]


@dataclass(eq=False)
class Population:
    """The past players of a run, their results and ratings, and the opponent policies that play
    them.

    Args:
        run_folder, seed: of the run.
        trained: the trained policies, by name.
        opponents: policy -> its opponent policies; policies without an entry have no past players.
        engines: policy -> the engine that samples for it; opponent policies included.
    """

    run_folder: Path = field(default_factory=Path)
    seed: int = 0
    settings: OpponentsConfig = field(default_factory=OpponentsConfig)
    trained: Mapping[str, Policy] = field(default_factory=dict)
    opponents: Mapping[str, Sequence[Policy]] = field(default_factory=dict)
    engines: Mapping[str, Engine] = field(default_factory=dict)
    peers: Peers = ALONE

    def __post_init__(self) -> None:
        self.snapshots: SnapshotFolder = SnapshotFolder(self.run_folder, self.peers)
        self.past: dict[str, list[PastPlayer]] = {name: [] for name in self.opponents}
        """policy -> its past players, the oldest first."""
        self.results: Results = Results()
        """Results of evaluations: games between players with fixed weights."""
        first = "0" if self.settings.every is not None else "source"
        self.anchor: str = f"{next(iter(self.opponents), '')}@{first}"
        """The player whose rating is fixed at 1000."""
        self.moving: MovingRatings = MovingRatings(self.anchor)
        """Ratings of all games; trained policies are players under their own names."""
        self.settled: dict[str, Interval] = {}
        """Players without further games, with their last ratings."""
        self.form: dict[str, dict[str, list[float]]] = {name: {} for name in self.trained}
        """policy -> past player -> discounted games against it and their score."""
        self.facing: dict[str, list[PastPlayer]] = {}
        """policy -> the past players loaded into its opponent policies."""
        self.exchange: Exchange = partial(_send, self.engines)
        """Sends opponent weights to the engines; a run also verifies that they arrived."""

    def __bool__(self) -> bool:
        return bool(self.opponents)

    # -- policy assignment -------------------------------------------------------------------------

    def assign_opponents(
        self, env: EnvironmentSpec, task: int, settings_of: Mapping[str, AgentSettings]
    ) -> Mapping[str, AgentSettings]:
        """Policy assignment of a training task: in a match all agents but one are past players, and
        the exception rotates from match to match."""
        players = {settings.policy for settings in settings_of.values() if settings.trained}
        number = match_number(task, 1.0 - self.settings.self)
        if number is None:
            return settings_of
        opponents = self._opponents(0)
        agents = rated_agents(env.template, settings_of, players, opponents)
        if not agents:
            return settings_of
        turn, index = divmod(number, len(agents))
        return with_opponents(env.template, settings_of, agents[index], self._opponents(turn))

    def _opponents(self, turn: int) -> dict[str, str]:
        """policy -> the opponent policy that replaces it; several are used in turn."""
        faced = {name: turn % len(past) for name, past in self.facing.items() if past}
        return {name: self.opponents[name][index].name for name, index in faced.items()}

    async def meet(self, step: int) -> None:
        """Sample the opponents of an iteration and load them."""
        lineups: dict[str, list[PastPlayer]] = {}
        for name, past in self.past.items():
            rng = random.Random(seed_of((self.seed, "opponents", name, step)))
            losses = {player.name: loss_rate(self.form, player.name) for player in past}
            by_name = {player.name: player for player in past}
            count, how = self.settings.at_once, self.settings.matchmaking
            chosen = drawn(list(by_name), count, how, losses, self.settings.power, rng)
            lineups[name] = [by_name[player] for player in chosen]
        await self._load(lineups)
        for name, chosen in lineups.items():
            del self.facing[name][len(chosen) :]

    async def _load(self, lineups: Mapping[str, Sequence[PastPlayer]]) -> None:
        """Load past players into opponent policies, policy by policy; these lose the players they
        held before."""
        loaded: list[Frozen] = []
        for name, chosen in lineups.items():
            current = self.facing.get(name, [])
            for index, past in enumerate(chosen):
                policy = self.opponents[name][index]
                if past not in current[index : index + 1]:
                    with span("opponents"):
                        policy.load(self.snapshots.folder / past.name)
                loaded.append(Frozen(policy, past.step or 0))
            self.facing[name] = [*chosen, *current[len(chosen) :]]
        if loaded:
            await self.exchange(loaded)

    def standing(self) -> dict[str, str]:
        """Opponent policy -> name of the past player it holds."""
        return {
            policy.name: past.name
            for name, faced in self.facing.items()
            for policy, past in zip(self.opponents[name], faced, strict=False)
        }

    # -- results -----------------------------------------------------------------------------------

    def note(self, groups: Sequence[Group]) -> dict[str, float]:
        """Record the results of training games; returns numbers to log."""
        if not self:
            return {}
        standing = self.standing()
        everything = [episode for group in groups for episode in group]
        episodes = [game for game in everything if not game.greedy and game.replayed is None]
        scores: dict[str, list[float]] = {}
        for episode in episodes:
            for result in results_of([episode], self.trained, standing):
                self._rate(result)
                scores.setdefault(result.player, []).append(result.score)
        met = sum(bool(standing.keys() & set(game.policies.values())) for game in episodes)
        means = {f"opponents/{name}/score": float(np.mean(x)) for name, x in scores.items()}
        return {"opponents/share": met / max(1, len(episodes)), **means}

    def _rate(self, result: MatchResult) -> None:
        self.moving.add(result.player, result.other, result.score)
        form = self.form[result.player].setdefault(result.other, [0.0, 0.0])
        form[0], form[1] = MEMORY * form[0] + 1.0, MEMORY * form[1] + result.score

    async def evaluate(self, play: Play, step: int, greedy: bool) -> dict[str, float]:
        """Run the current policies on held-out tasks against every past player, each task with
        every role assignment; update all ratings; returns numbers to log."""
        if not self:
            return {}
        results_by: dict[str, list[MatchResult]] = {}
        for name, members in self.past.items():
            for past in members:
                await self._load({name: [past]})
                for result in await self._match(play, step, name, greedy):
                    results_by.setdefault(result.player, []).append(result)
        metrics: dict[str, float] = {}
        for name, results in results_by.items():
            for result in results:
                self._rate(result)
                player = player_name(name, step)
                self.results.add(player, result.other, result.score, result.reward)
            metrics[f"eval/opponents/{name}/score"] = float(np.mean([r.score for r in results]))
            metrics[f"eval/opponents/{name}/reward"] = float(np.mean([r.reward for r in results]))
        ratings = self.ratings()
        for name in self.trained:
            if player_name(name, step) in ratings:
                rating, low, high = ratings[player_name(name, step)]
                metrics |= {f"rating/{name}": rating}
                metrics |= {f"rating/{name}/low": low, f"rating/{name}/high": high}
                metrics[f"rating/{name}/moving"] = self.moving[name]
        cycles = cycle_share(self.results, shown_players(self.results, ratings, self._kept()))
        metrics |= {} if cycles is None else {"opponents/cycles": cycles}
        self.write()
        meets = self._kept() | {self.anchor} | {player_name(name, step) for name in self.trained}
        self.settled |= {name: entry for name, entry in ratings.items() if name not in meets}
        return metrics

    async def _match(self, play: Play, step: int, name: str, greedy: bool) -> list[MatchResult]:
        """Matches against the past player in the first opponent policy of a policy."""
        (past, *_), opponents = self.facing[name], {name: self.opponents[name][0].name}
        others = {item for item in self.trained if player_name(item, step) != past.name}
        results: list[MatchResult] = []
        for env in play.environments:
            agents = rated_agents(env.template, play.settings_of, others, opponents)
            given = env.template, play.settings_of
            lineups = [with_opponents(*given, item, opponents) for item in agents]
            if lineups:
                item, standing = self.settings.tasks_per_game, {opponents[name]: past.name}
                groups = await play.matches(env, lineups, self.settings.games * item, greedy)
                for first in range(0, len(groups), item):
                    game = [episode for group in groups[first : first + item] for episode in group]
                    results += results_of(game, others, standing)
        return results

    def ratings(self) -> dict[str, Interval]:
        """Player -> rating and its 95 % interval, from all evaluations; sorted by policy and age,
        the oldest first."""
        fits = fitted(self.results, self.anchor, settled=self.settled)
        return {name: fits[name] for name in sorted(fits, key=_by_age)}

    # -- snapshots ---------------------------------------------------------------------------------

    def grow(self, step: int) -> None:
        """Take a snapshot of every policy, if it is due; before the first iteration, also add those
        from external sources. Snapshots that are no longer needed are removed."""
        settings = self.settings
        for name in self.past:
            if settings.every is not None and step % settings.every == 0:
                self._enter(PastPlayer(player_name(name, step), name, step))
            for index, source in enumerate(settings.source if step == 0 else ()):
                label = "source" if index == 0 else f"source-{index + 1}"
                self._enter(PastPlayer(f"{name}@{label}", name, None), source)
            self.past[name] = thinned(self.past[name], settings.keep)
        self.tidy()

    def tidy(self) -> None:
        """Remove snapshots that neither this run nor one of its checkpoints needs any more."""
        if self:
            self.snapshots.tidy(self._kept())

    def _enter(self, past: PastPlayer, source: str | None = None) -> None:
        members = self.past[past.policy]
        if past in members:
            return
        with span("opponents"), writing(self.snapshots.folder / past.name):
            if source is None:
                self.snapshots.add(past.name, self.trained[past.policy].save)
            else:
                opponent_copy = self.opponents[past.policy][0]
                self.facing.pop(past.policy, None)
                adopt(opponent_copy, source)
                self.snapshots.add(past.name, opponent_copy.save)
        members.append(past)
        if source is None:
            self.moving.enter(past.name, past.policy)

    # -- state -------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write ratings and pay-offs to the run folder, atomically."""
        if not self.peers.main:
            return
        data = {"anchor": self.anchor, **record(self.results, self.ratings(), self._kept())}
        target = self.run_folder / RATINGS
        with writing(target):
            write_json(target, data)

    def report(self) -> str:
        """Ratings and pay-off matrix as lines of text; empty without ratings."""
        if not self.results.players():
            return ""
        return report(self.results, self.ratings(), self._kept())

    def _kept(self) -> set[str]:
        return {past.name for members in self.past.values() for past in members}

    def state_dict(self) -> dict[str, Any]:
        """JSON-able; the weights are in separate folders."""
        members = {name: [asdict(past) for past in players] for name, players in self.past.items()}
        return {
            "past": members,
            "results": self.results.state_dict(),
            "moving": self.moving.state_dict(),
            "form": self.form,
            "settled": {name: list(rating) for name, rating in self.settled.items()},
        }

    def load_state_dict(self, state: dict[str, Any], run_folder: Path) -> None:
        """Inverse of `state_dict`; snapshots in another run's folder are copied, with a
        `CheckpointError` if one is damaged or missing."""
        self.past = {k: [PastPlayer(**row) for row in rows] for k, rows in state["past"].items()}
        self.results.load_state_dict(state["results"])
        self.moving.load_state_dict(state["moving"])
        settled = state.get("settled", {})
        self.settled = {name: (mean, low, high) for name, (mean, low, high) in settled.items()}
        self.form, self.facing = {k: dict(v) for k, v in state["form"].items()}, {}
        if self:
            self.snapshots.find(members_of(state), self._kept(), run_folder)


def mean_scores(population: Population) -> tuple[list[str], list[list[float | None]]]:
    """Players that are kept or the latest of their policy, and the mean score of each against each;
    `None` where they have not met."""
    results = population.results
    if not results.players():
        return [], []
    names = shown_players(results, population.ratings(), population._kept())
    met = [[results.between(one, other) for other in names] for one in names]
    return names, [[tally.mean_score if tally.games else None for tally in row] for row in met]


async def _send(engines: Mapping[str, Engine], loaded: Sequence[Frozen]) -> None:
    for opponent in loaded:
        await engines[opponent.policy].load_weights(
            opponent.policy, opponent.weights(), opponent.version
        )


def _by_age(name: str) -> tuple[str, int]:
    policy, _, step = name.rpartition("@")
    return policy, int(step) if step.isdigit() else -1


def cycle_share(results: Results, players: Sequence[str]) -> float | None:
    """Share of cycles among the triples of players of which each is better or worse than each
    other, beyond chance. It is 0 where a rating explains all results, and 1/4 where results are
    arbitrary; `None` without such a triple.
    """
    wins: dict[tuple[str, str], bool] = {}
    for one, other in combinations(players, 2):
        met = results.between(one, other)
        if met.games and abs(met.mean_score - 0.5) * 2 * met.games**0.5 > SURE:
            wins[one, other] = met.mean_score > 0.5
            wins[other, one] = not wins[one, other]
    cycles = [
        wins[a, b] == wins[b, c] == wins[c, a]
        for a, b, c in combinations(players, 3)
        if (a, b) in wins and (b, c) in wins and (c, a) in wins
    ]
    return sum(cycles) / len(cycles) if cycles else None
