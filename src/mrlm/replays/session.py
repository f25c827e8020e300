"""A rebuilt run, from which branches of a recorded episode are played: with the weights of that
episode, and its turns fed back exactly up to a change."""

import io
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from mrlm.build.async_play import beside_play
from mrlm.build.policies import LiveObjects
from mrlm.core.episodes import Episode
from mrlm.core.errors import ConfigError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Completion
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Engine
from mrlm.play.sources import branches
from mrlm.record.reader import RecordedEpisode
from mrlm.record.rows import episode_row
from mrlm.replays import rebuilding
from mrlm.replays.differences import differing
from mrlm.replays.other_weights import Weights, load_beside, weight_folders
from mrlm.runs import policies_of, threads
from mrlm.tracking.run_log import redacted, secrets
from mrlm.train import train
from mrlm.training.run import Run


@dataclass(frozen=True, slots=True)
class Branch:
    """A continuation of a recorded episode.

    Args:
        row: the row of the episode, as in the record (schema 2), under an id of its own.
        episode: the episode.
        origin: its `run`, `episode`, `step`, `agent`, `turn`, `number`, `change` and `weights`.
    """

    row: dict[str, Any]
    episode: Episode
    origin: dict[str, Any]

    @property
    def reward(self) -> float | None:
        """The team's reward; `None` if the episode failed."""
        return self.row["reward"] if self.row["status"] != "error" else None

    def record(self) -> dict[str, Any]:
        """The branch as JSON."""
        return {"origin": self.origin, "reward": self.reward, "episode": self.row}


class ForkSession:
    """A rebuilt run, from which branches of an episode are played. The run's folder is not changed.

    Args:
        run: a run folder, or that of a stage.
        episode: its `id` in the record.
        step: its `step` there, if the id occurs in several.
        parts: live objects that replaced sections of the config, in their initial state.

    Raises:
        ConfigError: the episode does not exist, is ambiguous or was not played in an environment;
            or the run cannot be rebuilt.

    Examples:
        >>> with ForkSession("outputs/run", "train/relay/21/0") as session:  # doctest: +SKIP
        ...     branches = session.play_from(agent="second", turn=0, n=8)
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        episode: str,
        step: int | None = None,
        *,
        parts: LiveObjects | None = None,
    ) -> None:
        self.folder: Path
        self.row: dict[str, Any]
        self.notes: list[str]
        self.folder, rows = rebuilding.find(Path(run), episode)
        self.row, self.notes = rebuilding.chosen(rows, episode, step, columns=False)
        if self.row.get("schema") != 2:
            raise ConfigError(
                f"{self.folder}: episode {episode!r} was recorded by an earlier version, without "
                "the order of its turns; use `mrlm replay` without --from"
            )
        if "replayed" in self.row:
            raise ConfigError(
                f"{self.folder}: episode {episode!r} is itself a replay, played in training for "
                f"credit; choose {self.row['replayed']['of']!r}, which it replays"
            )
        self.id: str = episode
        self.weights_note: str = ""
        number = self.row["step"]
        self._evaluated = episode.startswith("eval/")
        self._needed = number if self._evaluated else number - 1
        self._roles = max(0, number - 1)  # an evaluation has those of the latest iteration
        self._past = _recorded(self.row)
        until = None if self._past is None else self._needed
        self._watch = rebuilding.Watch(self.folder, episode, number, columns=False, until=until)
        self._place = Path(tempfile.mkdtemp(prefix="mrlm-fork-"))
        self._lock = threading.RLock()
        self._reached = False
        self._built_run = False
        self._beside: dict[str, dict[str, Engine]] = {}
        try:
            self.run: Run = self._built(parts)
            self._built_run = True
        except BaseException:
            self.close()
            raise

    def _built(self, parts: LiveObjects | None) -> Run:
        config = rebuilding.config_of(self.folder, parts)
        if config.training.max_lag:
            self.notes.append(
                "the run trained while it sampled: the weights are those before the step of the "
                "episode, and it may have been sampled with earlier ones"
            )
        origin = rebuilding.origin_of(self.folder, self._needed)
        with redirect_stdout(io.StringIO()):
            made, _ = rebuilding.rebuilt(
                self.folder, config, parts, self._watch, origin, self._place
            )
        if made.evaluator is None:
            made.log.close()
            raise ConfigError(f"{self.folder}: the run played no environment, only rows of data")
        made.assign_policies(self._roles)
        return made

    def close(self) -> None:
        """Remove the rebuilt run."""
        if self._built_run:
            self.run.log.close()
            self.run.placement.close()
        shutil.rmtree(self._place, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the recorded episode ----------------------------------------------------------------------

    @property
    def past(self) -> branches.Past:
        """The recorded turns; if the record has no tokens, those of the re-execution."""
        if self._past is None:
            self.reach()
        assert self._past is not None
        return self._past

    @property
    def turns(self) -> list[branches.TurnPlace]:
        """The turns of the episode in the order in which they were taken."""
        ordered = [
            ((turn["step"], turn["order"]), (name, turn["index"]))
            for name, agent in self.row["agents"].items()
            for turn in agent["turns"]
        ]
        return [location for _, location in sorted(ordered)]

    def when(self, location: branches.TurnPlace) -> tuple[int, int]:
        """(joint step, turns taken before it there) of a turn; concurrent ones have the same."""
        turns = self.row["agents"][location[0]]["turns"]
        return next((t["step"], t["order"]) for t in turns if t["index"] == location[1])

    def place(self, agent: str, turn: int) -> branches.TurnPlace:
        """A turn of the episode. Raises `ConfigError`: it has no such agent or turn."""
        if (agent, turn) not in self.turns:
            turn_names = ", ".join(f"{name}:{index}" for name, index in self.turns)
            raise ConfigError(
                f"episode {self.id!r} has no turn {agent}:{turn}; its turns are {turn_names}"
            )
        return agent, turn

    def reach(self) -> None:
        """Train the rebuilt run to the weights that the episode was played with, once."""
        with self._lock:
            if self._reached:
                return
            run = self.run
            begun = run.step
            with (
                redirect_stdout(io.StringIO()),
                suppress(rebuilding.FoundError),
                threads(run.config, policies_of(run)),
                beside_play(run),
            ):
                run_async(self._train())
            self.notes += self._watch.notes
            if self._past is None:
                self._past = self._replayed()
            run.assign_policies(self._roles)
            if not self._evaluated:
                run_async(run.population.meet(self._needed))
            start = rebuilding.origin_of(self.folder, self._needed)
            trained = self._needed - begun
            self.weights_note = "the initial weights" if start is None else start.name
            self.weights_note += f" and {trained} steps of training again" if trained else ""
            self._reached = True

    async def _train(self) -> None:
        if self._past is None:
            await rebuilding.go(self.run, self.row["step"], self._evaluated)
        else:
            self.run.total_steps = self._needed + 1  # it ends before that step
            await train(self.run)

    def _replayed(self) -> dict[branches.TurnPlace, branches.PastTurn]:
        """The turns of the re-executed episode, which must be those of the record."""
        if self._watch.found is None:
            raise ConfigError(
                f"{self.folder}: episode {self.id!r} was not in its step when that was played "
                "again; the run's config, its data or its environments have changed"
            )
        differences = list(differing(self.row, json.loads(json.dumps(self._watch.line))))
        if differences:
            raise ConfigError(
                f"{self.folder}: the record has no tokens of episode {self.id!r} (record.tokens), "
                f"and playing its step again gave another one: {differences[0]}"
            )
        return branches.past_of(self._watch.found)

    # -- branches ----------------------------------------------------------------------------------

    def play_from(
        self,
        *,
        agent: str,
        turn: int,
        n: int = 1,
        weights: Weights | None = None,
        greedy: bool = False,
        message: str | None = None,
        keep_seeds: bool = False,
    ) -> list[Branch]:
        """Play on from a turn; arguments, result and errors are those of `mrlm.play_from`."""
        if n < 1:
            raise ConfigError(f"n={n} must be at least 1")
        if greedy and message is not None:
            raise ConfigError("greedy and message exclude each other; give one of them")
        location = self.place(agent, turn)
        suffix = "" if weights is None else self.suffix(weights)
        how = "text" if message is not None else "greedy" if greedy else "sample"
        scripts = [
            branches.Script(
                number=number,
                turns=frozenset([location]),
                how=how,
                text=message or "",
                policy=suffix,
                rest_policy=suffix,
                own_turns=keep_seeds,
                own_rest=keep_seeds,
                feed=False,
            )
            for number in range(n)
        ]
        change = {"text": "message", "greedy": "greedy", "sample": "resample"}[how]
        used = self.weights_note if weights is None and self.reach() is None else str(weights)
        return [
            self._branch(episode, location, script.number, change, used)
            for episode, script in zip(self.play(scripts), scripts, strict=True)
        ]

    def play(self, scripts: Sequence[branches.Script]) -> list[Episode]:
        """Play branches concurrently."""
        with self._lock:
            run, past = self.run, self.past
            if run.population or any(not script.rest_policy for script in scripts):
                self.reach()
            engines = dict(run.engines)
            for extra in self._beside.values():
                engines |= extra
            play = self._branches(past, engines)
            with threads(run.config, policies_of(run)):
                return run_async(play.branches(scripts))

    def suffix(self, weights: Weights) -> str:
        """Load saved weights; returns the suffix of the policies that have them."""
        with self._lock:
            suffix = "@" + Path(str(weights).replace("checkpoint:", "checkpoint-")).name
            suffix = suffix.replace(".", "_")
            if suffix not in self._beside:
                trained = [learner.policy for learner in self.run.learners]
                folders = weight_folders(self.folder, weights, trained)
                self._beside[suffix] = load_beside(self.run, folders, suffix)
            return suffix

    def _branches(self, past: branches.Past, engines: Mapping[str, Engine]) -> branches.Branches:
        run, row = self.run, self.row
        assert run.evaluator is not None
        location = branches.EpisodePlace.of(self.id, run.evaluator.environments)
        settings = run.evaluator.settings_of
        if run.population and not self._evaluated:
            settings = run.population.assign_opponents(location.env, location.index, settings)
        config = run.config
        calm = row.get("greedy", False) or (self._evaluated and config.evaluation.greedy)
        return branches.Branches(
            run.evaluator.environments,
            settings,
            engines,
            1,
            config.training.seed,
            config.engine.timeout,
            place=location,
            past=past,
            path=tuple(row.get("path", ())),
            answers=row.get("answers", {}),
            calm=calm,
        )

    def _branch(
        self, episode: Episode, location: branches.TurnPlace, number: int, change: str, weights: str
    ) -> Branch:
        agent, turn = location
        episode.id = f"{self.id}@{agent}:{turn}.{number}"
        origin = {
            "run": str(self.folder),
            "episode": self.id,
            "step": self.row["step"],
            "agent": agent,
            "turn": turn,
            "number": number,
            "change": change,
            "weights": weights,
        }
        return Branch(self.row_of(episode), episode, origin)

    def row_of(self, episode: Episode) -> dict[str, Any]:
        """The row of an episode as in the record, without known secrets."""
        row = episode_row(episode, self.run.population.standing(), group=self.row["group"])
        row = {"step": self.row["step"], **row}
        return json.loads(json.dumps(redacted(row, secrets())))

    @cached_property
    def policies(self) -> dict[str, Policy]:
        """The policies with weights here, with those that the episode was played with."""
        self.reach()
        return {
            player.policy: player.weights_of for player in [*self.run.learners, *self.run.frozen]
        }


def _recorded(row: Mapping[str, Any]) -> dict[branches.TurnPlace, branches.PastTurn] | None:
    """The turns of a row, if the tokens of all are recorded."""
    past: dict[branches.TurnPlace, branches.PastTurn] = {}
    for turn in RecordedEpisode(row).turns:
        record = turn.row
        has_text = record["message"] is not None or "text" in record
        if turn.ids is None or turn.prompt_ids is None or not has_text:
            return None
        logprobs = turn.columns.get("logprobs", np.zeros(0)).tolist()
        completion = Completion(
            turn.ids.tolist(), logprobs, turn.text, record["finish_reason"], record["version"]
        )
        when = (record["step"], record["order"])
        past[turn.agent, record["index"]] = branches.PastTurn(
            turn.prompt_ids.tolist(), completion, when, record["trained"]
        )
    return past
