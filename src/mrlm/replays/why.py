"""The turns and agents that the outcome of an episode came from, by replay: each is replaced, the
episode is played on from there, and the outcomes are compared with the recorded one."""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mrlm.build.policies import LiveObjects
from mrlm.core.errors import ConfigError
from mrlm.learn.checkpoint import write_json
from mrlm.play.sources.branches import Script, TurnPlace
from mrlm.replays.differences import differing
from mrlm.replays.effects import MeanEstimate, shapley_estimates
from mrlm.replays.replacements import Cost, Played, Replacements
from mrlm.replays.session import ForkSession

SCHEMA = 1
FOLDER = "why"
SHARE = 0.5
"""The decisive turn is the earliest whose repair succeeds at least this often, relative to the turn
whose repair succeeds most often."""
LIMITS = (
    "Limits: replay shows what else these policies could have done, so an error that they always "
    "make is not found; early turns look influential, since more of the episode follows them."
)


@dataclass(slots=True)
class TurnEffect:
    """The effect of one turn.

    Args:
        agent, turn: the turn.
        when: (joint step, turns taken before it there).
        text: its message.
        mean: the outcome if this turn were different.
        difference: the recorded outcome minus that mean: above 0 the turn helped.
        success: rate of success if it were different.
        same: branches in which the other turn was the same.
        failed: branches that ended in an error, which count in no mean.
        influence: next agent -> divergence of its distribution without the message, in nats per
            token; `None` where there are no logits.
    """

    agent: str
    turn: int
    when: tuple[int, int]
    text: str
    mean: MeanEstimate
    difference: MeanEstimate
    success: MeanEstimate
    same: int
    failed: int
    influence: dict[str, float | None] = field(default_factory=dict)


@dataclass(slots=True)
class AgentEffect:
    """The effect of all turns of an agent together.

    Args:
        agent: the agent.
        mean: the outcome if all its turns were different.
        marginal: the recorded outcome minus that mean (leave one out).
        success: rate of success if they were different.
        failed: branches that ended in an error.
        shapley: its Shapley value; `None` with more agents than are computed.
    """

    agent: str
    mean: MeanEstimate
    marginal: MeanEstimate
    success: MeanEstimate
    failed: int
    shapley: MeanEstimate | None = None


@dataclass(slots=True)
class Why:
    """The result of `why`.

    Args:
        run, episode, step: the episode.
        reward: its outcome.
        solved: whether it succeeded: a reward of at least `success`.
        success: see `solved`.
        against: what turns were replaced by.
        n: branches of every change.
        exact: whether the unchanged episode came out as recorded when it was played again.
        cost: as it was computed before.
        played: branches that were played.
        seconds: time they took.
        turns, agents: the effects, turns in the order in which they were taken.
        decisive: the earliest turn whose repair turns failure into success, as (agent, turn).
        suspect: the agent whose replacement raises the outcome most; `None` if none does.
        notes: remarks.
    """

    run: str
    episode: str
    step: int
    reward: float | None
    success: float
    against: str
    n: int
    exact: bool
    cost: Cost
    played: int
    seconds: float
    turns: list[TurnEffect]
    agents: list[AgentEffect]
    notes: list[str]

    @property
    def solved(self) -> bool:
        return self.reward is not None and self.reward >= self.success

    @property
    def decisive(self) -> tuple[str, int] | None:
        if self.solved:
            return None
        best = max((effect.success.value or 0.0 for effect in self.turns), default=0.0)
        repairs = (e for e in self.turns if best and (e.success.value or 0.0) >= SHARE * best)
        return next(((effect.agent, effect.turn) for effect in repairs), None)

    @property
    def suspect(self) -> str | None:
        if self.decisive is not None:
            return self.decisive[0]
        marginals = [
            (e.marginal.value, e.agent) for e in self.agents if e.marginal.value is not None
        ]
        worst = min(marginals, default=(0.0, ""))
        return worst[1] if worst[0] < 0 else None

    def record(self) -> dict[str, Any]:
        """The result as JSON, as `docs/why.md` describes it."""
        decisive = self.decisive
        return {
            "schema": SCHEMA,
            **json.loads(json.dumps(asdict(self))),
            "seconds": round(self.seconds, 3),
            "solved": self.solved,
            "decisive": decisive and {"agent": decisive[0], "turn": decisive[1]},
            "suspect": self.suspect,
            "notes": [*self.notes, LIMITS],
        }

    def save(self) -> Path:
        """Write the result into the run folder: `why/<episode>.json`, where `-` replaces `/`, for
        episodes that occur in several steps with the step in front. Raises `ConfigError`: it cannot
        be written."""
        name = self.episode.replace("/", "-")
        name = f"{self.step}-{name}" if self.episode.startswith("eval/") else name
        path = Path(self.run) / FOLDER / f"{name}.json"
        try:
            path.parent.mkdir(exist_ok=True)
            write_json(path, self.record())
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
        return path


def why(
    run: str | os.PathLike[str],
    episode: str,
    *,
    step: int | None = None,
    agent: str = "all",
    n: int = 8,
    against: str = "resample",
    success: float = 1.0,
    parts: LiveObjects | None = None,
    announce: Callable[[Cost], None] | None = None,
) -> Why:
    """Find out which turns and agents decided the outcome of an episode. Every turn, and all
    turns of every set of agents, are replaced `n` times, and the episode is played on: a later turn
    that reads the same as in the record stays, and one that reads something else is sampled again,
    with the weights that the episode was played with.

    Args:
        run: a run folder, or that of a stage.
        episode: its `id` in the record.
        step: its `step` there, if the id occurs in several.
        agent: the agent whose turns are replaced, or `all`.
        n: branches of every change.
        against: what a turn is replaced by: `resample`, `expert` (the environment's), `silence` (an
            empty message) or `checkpoint:40` (sampled with other weights).
        success: reward from which an episode counts as a success.
        parts: live objects that replaced sections of the config, in their initial state.
        announce: called with the cost before the branches are played.

    Raises:
        ConfigError: the episode or agent does not exist, the environment has no expert, the run
            cannot be rebuilt, or it is not reproducible.
    """
    with ForkSession(run, episode, step, parts=parts) as session:
        return explain(
            session, agent=agent, n=n, against=against, success=success, announce=announce
        )


def explain(
    session: ForkSession,
    *,
    agent: str = "all",
    n: int = 8,
    against: str = "resample",
    success: float = 1.0,
    announce: Callable[[Cost], None] | None = None,
) -> Why:
    """The same for an open session; arguments as those of `why`."""
    row = session.row
    if row["status"] == "error":
        raise ConfigError(f"episode {session.id!r} failed, so it has no outcome to explain")
    replacements = Replacements(session, agent, n, _change(session, against))
    session.reach()
    started = time.perf_counter()
    unchanged = Script(turns=frozenset(session.turns[:1]), own_turns=True, feed=False)
    check = session.play([unchanged])[0]  # sampled again with its own random numbers
    sampled = sum(len(turn) for turn in check.turns)
    speed = max(1, sampled) / max(1e-9, time.perf_counter() - started)
    differences = list(differing(row, {**session.row_of(check), "id": row["id"]}))
    cost = replacements.cost(speed)
    if announce is not None:
        announce(cost)
    started = time.perf_counter()
    outcomes = replacements.play(check)
    notes = list(session.notes)
    if differences:
        notes.append(f"the unchanged episode did not come out as recorded: {differences[0]}")
    rates = _limits(session, row["reward"])
    turns = [_turn_effect(session, turn, outcomes, rates, success) for turn in replacements.places]
    return Why(
        run=str(session.folder),
        episode=session.id,
        step=row["step"],
        reward=row["reward"],
        success=success,
        against=against,
        n=n,
        exact=not differences,
        cost=cost,
        played=outcomes.played,
        seconds=time.perf_counter() - started,
        turns=turns,
        agents=_agent_effects(replacements, outcomes, row["reward"], rates, success),
        notes=notes,
    )


# -- the changes ----------------------------------------------------------------------------------


def _change(session: ForkSession, against: str) -> Script:
    """A script that says how turns are changed, and no turn yet."""
    new = Script(own_rest=False)
    if against == "resample":
        return new
    if against == "silence":
        return replace(new, how="text")
    if against == "expert":
        return replace(new, how="expert")
    if against.startswith("checkpoint"):
        return replace(new, policy=session.suffix(against))
    raise ConfigError(
        f"against={against!r} is not known; give resample, expert, silence or checkpoint:STEP"
    )


# -- the estimates --------------------------------------------------------------------------------


def _limits(session: ForkSession, reward: float) -> tuple[float, float] | None:
    """The two ends of the environment's rewards, if the recorded outcome is one of them."""
    assert session.run.evaluator is not None
    name = session.row["environment"]
    templates = [e.template for e in session.run.evaluator.environments if e.name == name]
    limits = templates[0].reward_range if templates else None
    return limits if limits is not None and reward in limits else None


def _turn_effect(
    session: ForkSession,
    location: TurnPlace,
    outcomes: Played,
    limits: tuple[float, float] | None,
    success: float,
) -> TurnEffect:
    outcome = outcomes.turns[location]
    mean = outcome.mean(limits)
    return TurnEffect(
        *location,
        when=session.when(location),
        text=session.past[location].completion.text,
        mean=mean,
        difference=mean.from_(session.row["reward"]),
        success=outcome.success(success),
        same=outcome.same,
        failed=len(outcome.rewards) - len(outcome.known),
        influence=outcomes.influence.get(location, {}),
    )


def _agent_effects(
    replacements: Replacements,
    outcomes: Played,
    reward: float,
    limits: tuple[float, float] | None,
    success: float,
) -> list[AgentEffect]:
    values: Mapping[str, MeanEstimate] = {}
    if replacements.whole and len(replacements.agents) > 1:
        values = shapley_estimates(replacements.agents, reward, outcomes.sets)
    effects = []
    for agent in replacements.agents:
        outcome = outcomes.sets[frozenset([agent])]
        mean = outcome.mean(limits)
        failed = len(outcome.rewards) - len(outcome.known)
        marginal = mean.from_(reward)
        effects.append(
            AgentEffect(agent, mean, marginal, outcome.success(success), failed, values.get(agent))
        )
    return effects
