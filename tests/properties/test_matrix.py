"""One credit, whichever way episodes come to it: the trainer, a learner and a team's learner on the
trainer's episodes, a loop of one's own over their rollouts, and an environment behind a server
write the same advantages."""

import copy
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.learning.table import TABLE

from any_algorithm import models as models
from mrlm import ExperimentConfig, Learner, Message, Rollout, TeamLearner
from mrlm.build.policies import LiveObjects
from mrlm.build.run import build
from mrlm.core import registry
from mrlm.core.episodes import Episode, Group
from mrlm.core.types import MessageType
from mrlm.runs import run_to_end
from mrlm.serving.environments.server import ServedEnvironment
from servers import InProcess

NO_ADVANTAGES = {"sft", "dpo", "spin", "reward_model", "online_dpo", "madpo", "malt", "router_r1"}
NAMES = [name for name in registry.names("algorithms") if name not in NO_ADVANTAGES]
OF_THE_TEAM = {"mappo", "happo", "vdn", "qmix"}
"""Those whose critic sees every agent: `TeamLearner` alone has it."""
SEVERAL = {"cory", "vdn", "qmix"}
"""Those that need two agents."""
ONE_TURN = {"at_grpo"}
"""Those that compare answers to one state, of which parallel episodes have one."""
REPLAYED = {"c3", "ccpo", "sharp"}
"""Those that need replays of episodes, which a loop of one's own does not play."""
SETTINGS: dict[str, dict[str, Any]] = {
    "distill": {"reward_weight": 0.5},
    "vdn": {"mode": "vdac"},  # the other modes credit with what the critic has learned since
    "qmix": {"mode": "vdac"},
    "cory": {"swap_freq": None, "kl_coef": 0.0},
    "ippo": {"rewards": "team"},
    "maporl": {"num_minibatches": 2},
    "marshal": {"rewards": "team"},
    "reinforce": {"baseline": "mean"},
}
CASES = list(itertools.product((1, 3), (1, 2), ("dense", "final"), (1.0, 0.9)))
"""Turns, agents, rewards, gamma."""
SERVED = {"ippo"}
"""Algorithms that are always tried behind a server; the others are slow tests."""


def cases() -> Iterator[Any]:
    """Every algorithm with every case that fits it; one case of every other one is not slow."""
    for number, name in enumerate(name for name in NAMES if name not in REPLAYED):
        fitting = [
            case
            for case in CASES
            if not (name in ONE_TURN and case[0] > 1) and not (name in SEVERAL and case[1] < 2)
        ]
        for place, case in enumerate(fitting):
            fast = number % 2 == 0 and place == (5 * number // 2 + 7) % len(fitting)
            marks = [] if fast else [pytest.mark.slow]
            yield pytest.param(name, *case, marks=marks, id="-".join(map(str, (name, *case))))


def config_of(
    name: str, turns: int, agents: int, reward: str, gamma: float, model: str, **env: Any
) -> ExperimentConfig:
    policies = {"a": {}, "b": {}} if name == "happo" else {"team": {}}
    who = {a: {"policy": a if name == "happo" else "team"} for a in ("a", "b")[:agents]}
    algorithm = registry.load("algorithms", name)
    own = {"group_size": 4} if "group_size" in algorithm.__dataclass_fields__ else {}
    own |= {"gamma": gamma} if "gamma" in algorithm.__dataclass_fields__ else {}
    own |= SETTINGS.get(name, {})
    if agents == 1 and name == "marshal":
        del own["rewards"]  # they are the team's
    world = {"env_type": "small_environments:Rounds", "rounds": turns, "num_agents": agents}
    config: dict[str, Any] = {
        "model": {"model_name_or_path": model},
        "environments": [world | {"reward": reward} | env],
        "policies": {each: policies[each] for each in list(policies)[:agents]},
        "agents": who,
        "training": {
            "algorithm": name,
            "num_iterations": 1,
            "batch_size": 2,
            "learning_rate": 1e-3,
            "report_to": "none",
            "threads": 1,
        },
        "generation": {"max_new_tokens": 3},
        name: own,
    }
    kept = TABLE[name].config if name in ONE_TURN else {}
    found = ExperimentConfig(**config)
    workflow = {key: value for key, value in kept.items() if key.startswith("workflow")}
    return found.merged(workflow) if workflow else found


class Trained:
    """One iteration of a trainer: the groups before and after credit, and the models before."""

    def __init__(self, config: ExperimentConfig, folder: Path) -> None:
        run = build(config.merged({"output_dir": str(folder)}), LiveObjects())
        self.algorithm = type(run.algorithm)
        names = [each.name for each in dataclasses.fields(run.algorithm)]
        self.settings = {name: getattr(run.algorithm, name) for name in names}
        self.tokenizer = run.learners[0].chat.tokenizer
        self.models = {each.policy: copy.deepcopy(each.weights_of.model) for each in run.learners}
        self.critics = [copy.deepcopy(critic.learned) for critic in run.critics]
        take = run.source.take

        async def taken(count: int) -> list[Group]:
            self.after = await take(count)
            self.before = copy.deepcopy(self.after)
            return self.after

        update = run.placement.update

        async def updated(jobs: Any, algorithm: Any, step: int) -> Any:
            if not hasattr(self, "advantages"):  # HAPPO goes on to scale them
                self.advantages = advantages(self.after)
            return await update(jobs, algorithm, step)

        run.source.take = taken  # type: ignore[method-assign]
        run.placement.update = updated  # type: ignore[method-assign]
        run_to_end(run)

    def algorithm_again(self) -> Any:
        return self.algorithm(**self.settings)

    def agents(self) -> dict[str, Any]:
        """Agent -> a model as it was before the iteration."""
        names = self.after[0].agents
        alone = next(iter(self.models.values()))
        return {name: (self.models.get(name, alone), self.tokenizer) for name in names}


def advantages(groups: list[Group]) -> np.ndarray:
    """Those of all trained tokens, in order."""
    return of_turns(turn for group in groups for e in group for turn in e.turns)


def of_turns(turns: Any) -> np.ndarray:
    rows = [
        np.broadcast_to(np.asarray(turn.advantages, float), len(turn))
        for turn in turns
        if turn.trained and turn.advantages is not None
    ]
    return np.concatenate(rows)


def by_learner(trained: Trained, plays: Any, rewards: Any = None) -> np.ndarray:
    model, tokenizer = next(iter(trained.agents().values()))
    learner = Learner(copy.deepcopy(model), tokenizer, trained.algorithm_again())
    return of_turns(learner.batch(plays, rewards).turns)


def by_team(trained: Trained, plays: list[Any], rewards: Any = None) -> np.ndarray:
    team = TeamLearner(copy.deepcopy(trained.agents()), trained.algorithm_again())
    for critic, known in zip(team.critics, trained.critics, strict=True):
        if (
            trained.algorithm_again().spec.critic.topology == "mixed"
        ):  # other critics begin as the policy is
            critic.learned.load_state_dict(known.state_dict())  # type: ignore[attr-defined]
    return advantages(team.credited(plays, rewards))


@pytest.mark.parametrize(("name", "turns", "agents", "reward", "gamma"), list(cases()))
def test_every_way_gives_the_same_advantages(
    name: str,
    turns: int,
    agents: int,
    reward: str,
    gamma: float,
    models: tuple[str, str],
    tmp_path: Path,
) -> None:
    trained = Trained(config_of(name, turns, agents, reward, gamma, models[0]), tmp_path)
    expected = trained.advantages
    assert np.abs(expected).max() > 1e-3
    episodes = [episode for group in trained.before for episode in group]
    greedy = any(episode.greedy for episode in episodes)
    found = {"team": by_team(trained, episodes)}
    if name not in OF_THE_TEAM:
        found["groups"] = by_learner(trained, copy.deepcopy(trained.before))
        found["episodes"] = by_learner(trained, copy.deepcopy(episodes))
    if not greedy and name not in OF_THE_TEAM:
        plays = [_rollouts(each) for each in copy.deepcopy(episodes)]
        found["own loop"] = by_learner(trained, plays)
        found["own team"] = by_team(trained, [dict(each.rollouts) for each in episodes])
        if reward == "final":
            rewards = [{a: r.reward for a, r in each.rollouts.items()} for each in episodes]
            plays = [_rollouts(each) for each in copy.deepcopy(episodes)]
            found["own rewards"] = by_learner(trained, plays, rewards)
    for way, values in found.items():
        np.testing.assert_allclose(values, expected, atol=1e-6, err_msg=way)


def _rollouts(episode: Episode) -> Rollout | dict[str, Rollout]:
    """What an own loop has of an episode: the rollout, or agent -> rollout."""
    if len(episode.rollouts) == 1:
        (rollout,) = episode.rollouts.values()
        return rollout
    return dict(episode.rollouts)


@pytest.fixture(scope="module")
def server() -> Iterator[InProcess]:
    made = InProcess(environments=[ServedEnvironment("rounds", "small_environments:Rounds")])
    yield made
    made.close()


@pytest.mark.system
@pytest.mark.parametrize(
    "name",
    [name if name in SERVED else pytest.param(name, marks=pytest.mark.slow) for name in NAMES],
)
def test_an_environment_behind_a_server_gives_the_same_advantages(
    name: str, models: tuple[str, str], server: InProcess, tmp_path: Path
) -> None:
    case = (1 if name in ONE_TURN else 3, 2, "dense", 0.9)
    here = Trained(config_of(name, *case, models[0]), tmp_path / "here")
    away = {"env_type": "rounds", "remote": True, "server_address": server.address}
    there = Trained(config_of(name, *case, models[0], **away), tmp_path / "there")
    np.testing.assert_allclose(there.advantages, here.advantages, atol=1e-6)


# -- one transcript of two speakers ----------------------------------------------------------------


FOR_THE_TEAM = ["magrpo", "marloo", "mareinforce", "maremax", "marshal", "marft", "ippo"]


@pytest.mark.parametrize("name", FOR_THE_TEAM)
def test_both_speakers_of_a_transcript_get_more_for_a_win(
    name: str, model: Any, tokenizer: Any
) -> None:
    """Rewards 1, 1, 1, 0: neither is blamed for a win."""
    settings = {"rewards": "team"} if name in ("marshal", "ippo") else {}
    algorithm = registry.load("algorithms", name)(**settings)
    plays = []
    for number in range(4):
        play = Rollout().add_messages(Message("2+3?"))
        for agent, text in (("solver", f"{number}"), ("checker", f"it is {number}")):
            play.add_messages(Message(text, MessageType.MODEL, agent=agent))
        plays.append(play)
    rewards = [1.0, 1.0, 1.0, 0.0]
    turns = Learner(model, tokenizer, algorithm).batch(plays, rewards).turns
    for agent in ("solver", "checker"):
        *wins, loss = [float(np.mean(turn.advantages)) for turn in turns if turn.agent == agent]
        assert len(wins) == 3 and min(wins) > loss, (agent, wins, loss)
        if name not in ("mareinforce", "maremax"):
            assert min(wins) > 0 > loss, (agent, wins, loss)
