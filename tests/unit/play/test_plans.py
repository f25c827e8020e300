"""Which episodes are played for an algorithm: a greedy one beside the others, trees of which the
best goes on, groups that teach something, and every combination of answers."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logged_rows import Stop, logged
from mrlm import ExperimentConfig
from mrlm.algorithms.at_grpo import ATGRPO, range_normalised_variance
from mrlm.algorithms.magrpo import MAGRPO
from mrlm.algorithms.maremax import MAREMAX
from mrlm.algorithms.marloo import MARLOO
from mrlm.algorithms.remax import ReMax
from mrlm.build.policies import LiveObjects
from mrlm.build.run import plan_of
from mrlm.core.environment import Environment
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Observation, Reward, Rollout, StepResult, Task, Turn
from mrlm.experiment import run_experiment
from mrlm.learn.bases.spec import SamplingPlan
from mrlm.learn.data.samples import samples_of
from mrlm.planning.plan import arithmetic
from mrlm.play.sources.play import Play
from mrlm.training.metrics import episode_metrics
from mrlm.workflows.cross import Cross
from mrlm.workflows.tree import Tree
from recorded import episodes as recorded
from scripted_play import Echo, play, spoken


def played(rewards: list[float], **fields: Any) -> Group:
    """Episodes of one agent that said two tokens."""
    episodes = []
    for number, reward in enumerate(rewards):
        turn = Turn("a", "p", [1], [2, 3], [-0.5, -0.5], reward=reward)
        rollouts = {"a": Rollout("a", "p", "t", [turn])}
        episode = Episode(str(number), Task("t"), rollouts, reward, [reward], "done")
        episodes.append(episode)
    return Group(episodes, "t", **fields)


def greedy_of(group: Group) -> Episode:
    """The last episode of a group, made the greedy one."""
    last = group.episodes[-1]
    last.greedy = True
    for turn in last.turns:
        turn.trained = False
    return last


def experiment(folder: Path, algorithm: str, **more: Any) -> ExperimentConfig:
    config: dict[str, Any] = {
        "environments": [{"env_type": "matrix", "game": "climbing", "normalized": True}],
        "training": {
            "algorithm": algorithm,
            "num_iterations": 4,
            "batch_size": 4,
            "learning_rate": 1e-3,
            "save_steps": 1,
            "report_to": "none",
        },
        "generation": {"max_new_tokens": 2},
        "output_dir": str(folder),
    }
    for name, section in more.items():
        known = config.get(name)
        config[name] = {**known, **section} if isinstance(known, dict) else section
    return ExperimentConfig(**config)


def resumes_exactly(tmp_path: Path, algorithm: str, **more: Any) -> list[dict[str, Any]]:
    """A run that was stopped in the middle logs what an undisturbed one does."""
    run_experiment(experiment(tmp_path / "whole", algorithm, **more))
    cut = experiment(tmp_path / "cut", algorithm, **more)
    run_experiment(cut, callbacks=[Stop(2)])
    assert len(logged(tmp_path / "cut")) < len(logged(tmp_path / "whole"))
    run_experiment(cut, resume=tmp_path / "cut")
    found = logged(tmp_path / "whole")
    assert logged(tmp_path / "cut") == found
    return found


# -- a greedy sibling ------------------------------------------------------------------------------


def test_remax_compares_with_the_greedy_episode() -> None:
    group = played([1.0, 0.0, 0.25])
    greedy = greedy_of(group)
    ReMax().credit([group])
    found = [np.broadcast_to(turn.advantages, 2) for e in group.valid for turn in e.turns]
    np.testing.assert_allclose(found, [[0.75, 0.75], [-0.25, -0.25]], atol=1e-6)
    assert all(turn.advantages is None for turn in greedy.turns)
    assert len(samples_of([group], "p")) == 2


def test_remax_takes_the_divergence_from_every_token() -> None:
    group = played([1.0, 0.25])
    greedy_of(group)
    (turn,) = group.episodes[0].turns
    turn.ref_logprobs = [-0.7, -0.4]
    ReMax(kl_coef=0.5).credit([group])
    np.testing.assert_allclose(turn.advantages, [1 - 0.05 - 0.25, 1 + 0.05 - 0.25], atol=1e-6)


def turns_paid(*paid: float) -> Rollout:
    """An agent whose turns have two tokens each."""
    turns = [
        Turn("a", "p", [1] * (1 + step), [2, 3], [-1.0] * 2, reward=reward, step=step, index=step)
        for step, reward in enumerate(paid)
    ]
    return Rollout("a", "p", "t", turns)


def test_remax_compares_turns_of_the_same_number() -> None:
    """Returns 6, 2 and 1 against 3 and 2; a third turn is compared with the last one there, and
    all with 3 by `episode`. An agent that did not speak there has earned 0."""
    sampled = Episode("0", Task("t"), {"a": turns_paid(4.0, 1.0, 1.0)}, 6, [4, 1, 1], "done")
    greedy = Episode("1", Task("t"), {"a": turns_paid(1.0, 2.0)}, 3, [1, 2], "done")
    group = Group([sampled, greedy], "t")
    greedy_of(group)
    for by, expected in (("turn", [3.0, 0.0, -1.0]), ("episode", [3.0, -1.0, -2.0])):
        ReMax(baseline_by=by).credit([group])  # type: ignore[arg-type]
        assert [turn.advantages.tolist() for turn in sampled.turns] == [[x] * 2 for x in expected]
    del greedy.rollouts["a"]
    ReMax().credit([group])
    assert [turn.advantages.tolist() for turn in sampled.turns] == [[6.0] * 2, [2.0] * 2, [1.0] * 2]


def test_remax_takes_the_divergence_of_later_turns_from_earlier_ones() -> None:
    sampled = Episode("0", Task("t"), {"a": turns_paid(1.0, 4.0)}, 5, [1, 4], "done")
    for turn, row in zip(sampled.turns, ([0.5, 2.0], [0.25, 0.75]), strict=True):
        turn.ref_logprobs = [-1.0 - x for x in row]
    group = Group([sampled, *played([0.5])], "t")
    greedy_of(group)
    ReMax(kl_coef=0.4).credit([group])
    found = np.concatenate([turn.returns for turn in sampled.turns])  # type: ignore[misc]
    np.testing.assert_allclose(found, [4.6 - 1.0, 4.6 - 0.8, 4.0 - 0.4, 4.0 - 0.3])


def test_a_team_can_be_compared_with_its_greedy_episode() -> None:
    """Returns [1 + 0.9 * 2, 2] against [0.5 + 0.9 * 1, 1], turn by turn, for either agent."""

    def two_steps(name: str, paid: list[float]) -> Episode:
        rollouts = {}
        for agent in "ab":
            turns = [
                Turn(agent, "p", [1], [2], [-0.5], reward=r, step=i, index=i)
                for i, r in enumerate(paid)
            ]
            rollouts[agent] = Rollout(agent, "p", "t", turns)
        return Episode(name, Task("t"), rollouts, sum(paid), list(paid), "done")

    group = Group([two_steps("0", [1.0, 2.0]), two_steps("1", [0.5, 1.0])], "t")
    greedy = greedy_of(group)
    algorithm = MAREMAX(baseline="remax_greedy", group_size=1)
    assert algorithm.spec.sampling == SamplingPlan(greedy=True, credits="trees")
    for agent in "ab":
        algorithm.credit([group])
        found = [turn.advantages for turn in group.episodes[0].rollouts[agent].turns]
        np.testing.assert_allclose(found, [2.8 - 1.4, 2.0 - 1.0], atol=1e-6)
        MAREMAX(baseline="remax_greedy", baseline_by="episode", group_size=1).credit([group])
        found = [turn.advantages for turn in group.episodes[0].rollouts[agent].turns]
        np.testing.assert_allclose(found, [2.8 - 1.2, 2.0 - 1.2], atol=1e-6)
    assert all(turn.advantages is None for turn in greedy.turns)
    assert algorithm.metrics == {"frac_without_greedy": 0.0, "greedy_reward/mean": 1.5}
    del greedy.rollouts["b"]
    algorithm.credit([group])
    assert group.episodes[0].rollouts["b"].turns[1].advantages == 2.0
    greedy.status = "error"
    algorithm.credit([group])
    assert all(turn.advantages is None for episode in group for turn in episode.turns)


def test_the_baselines_of_the_family_are_one_setting(tmp_path: Path) -> None:
    found = [each().baseline for each in (MAGRPO, MARLOO, MAREMAX)]
    assert found == ["mean", "leave_one_out", "group_max"]
    words = {"mean": [-2, -1, 3], "raw": [1, 2, 6], "max": [-5, -4, 0], "rloo": [-3, -1.5, 4.5]}
    for word, expected in words.items():
        settings = experiment(tmp_path, "magrpo", advantage_mode=word).algorithm_settings()
        group = played([1.0, 2.0, 6.0])
        settings.credit([group])
        advantages = [turn.advantages for episode in group for turn in episode.turns]
        np.testing.assert_allclose(advantages, expected, atol=1e-6)
    with pytest.raises(ConfigError, match=r"group_max' compares siblings, and group_size is 1"):
        MAREMAX(group_size=1)
    with pytest.raises(ConfigError, match=r"joint_mode='cross' .* set joint_mode=aligned"):
        MAGRPO(baseline="remax_greedy", joint_mode="cross")
    greedy = {"baseline": "remax_greedy"}
    with pytest.raises(ConfigError, match=r"'tree' tries several .* whole episodes with a greedy"):
        plan_of(
            experiment(tmp_path, "maremax", maremax=greedy, workflow={"name": "tree"}),
            LiveObjects(),
        )


@pytest.mark.slow
def test_maremax_with_a_greedy_episode_goes_on_bit_by_bit(tmp_path: Path) -> None:
    settings = {"group_size": 1, "baseline": "remax_greedy"}
    more: dict[str, Any] = {
        "maremax": settings,
        "policies": {"row": {"lora": {"r": 2}}, "column": {}},
    }
    rows = [row for row in resumes_exactly(tmp_path, "maremax", **more) if row["step"]]
    assert len(rows) == 4 and all(row["episodes/count"] == 4 for row in rows)
    assert all("greedy_reward/mean" in row and np.isfinite(row["loss"]) for row in rows)
    plan = arithmetic(experiment(tmp_path, "maremax", **more), num_agents=2, trained_agents=2)
    assert plan.episodes == 8 and plan.sequences == 8


def test_remax_does_not_learn_where_the_greedy_episode_failed() -> None:
    lost, whole = played([1.0, 0.0]), played([1.0, 0.5])
    greedy_of(lost).status = "error"
    greedy_of(whole)
    algorithm = ReMax()
    algorithm.credit([lost, whole])
    assert all(turn.advantages is None for episode in lost for turn in episode.turns)
    assert algorithm.metrics == {"frac_without_greedy": 0.5, "greedy_reward/mean": 0.5}


def test_a_greedy_episode_is_played_beside_the_others_and_counts_nowhere(tokenizer: Any) -> None:
    def script(request: Any) -> str:
        return "long" if request.sampling.greedy else "x"

    source, engine = play(tokenizer, Echo(1), script, ("a", "b"))
    source = Play(
        source.environments, source.settings_of, {"policy": engine}, 2, seed=0, greedy=True
    )
    groups = run_async(source.take(2))
    for group in groups:
        assert [episode.greedy for episode in group] == [False, False, True]
        assert [turn.trained for turn in group.episodes[2].turns] == [False, False]
        assert len({e.task.id for e in group}) == 1 and len({e.id for e in group}) == 3
        assert [len(turn.message.content) for turn in group.episodes[2].turns] == [4, 4]
        assert len(group.valid) == 2 and group.greedy is group.episodes[2]
    metrics = episode_metrics(groups)
    assert metrics["reward/mean"] == 1.0 and metrics["episodes/count"] == 4
    assert metrics["reward/a/mean"] == 1.0
    assert [len(group) for group in run_async(source.evaluate(1))] == [1]


@pytest.mark.slow
def test_remax_trains_and_goes_on_bit_by_bit(tmp_path: Path) -> None:
    policies = {"row": {"lora": {"r": 2}}, "column": {}}
    rows = resumes_exactly(tmp_path, "remax", remax={"group_size": 2}, policies=policies)
    steps = [row for row in rows if "greedy_reward/mean" in row]
    assert len(steps) == 4 and all(row["episodes/count"] == 8 for row in steps)
    assert all(np.isfinite(row["loss"]) for row in steps)


def test_greedy_episodes_are_counted_and_refused_where_nothing_is_played(tmp_path: Path) -> None:
    config = experiment(tmp_path, "remax", remax={"group_size": 2})
    plan = arithmetic(config, num_agents=2, trained_agents=2, max_turns=3)
    assert (plan.episodes, plan.sequences, plan.model_calls) == (12, 16, 12 * 2 * 3)
    assert "4 greedy episodes" in str(plan)
    rows = [{"prompt": "a", "completion": "b"}]
    with pytest.raises(
        ConfigError, match=r"'remax' has to sample .* data\.dataset only provides rows"
    ):
        plan_of(experiment(tmp_path, "remax", data={"dataset": rows}), LiveObjects())
    with pytest.raises(ConfigError, match=r"'tree' tries several answers .* workflow 'turns'"):
        plan_of(experiment(tmp_path, "remax", workflow={"name": "tree"}), LiveObjects())


# -- trees -----------------------------------------------------------------------------------------


def grown(tokenizer: Any, world: Any, size: int = 3, **settings: Any) -> tuple[Group, Any]:
    source, engine = play(tokenizer, world, spoken, ("a", "b"), Tree(**settings), size)
    (group,) = run_async(source.take(1))
    return group, engine


def test_the_best_answer_to_a_state_goes_on(tokenizer: Any) -> None:
    group, engine = grown(tokenizer, Echo(3), branches=4, select="best")
    assert [len(batch) for batch in engine.batches] == [2 * 3, 2 * 4, 2 * 4]
    assert len(group) == 3 + 3 + 3 and len({episode.id for episode in group}) == 9
    assert len({episode.path for episode in group}) == 9
    for depth in (1, 2):
        tried = {e.path[:depth]: e.step_rewards[depth - 1] for e in group if len(e.path) >= depth}
        stem = {path[:-1] for path in tried}
        assert len(stem) == 1
        (followed,) = {e.path[:depth] for e in group if len(e.path) > depth}
        assert tried[followed] == max(tried.values())
    ended = {episode.path: episode for episode in group if episode.pruned}
    assert len(ended) == 2 + 3 and all(e.status == "truncated" for e in ended.values())
    last = [episode for episode in group if not episode.pruned]
    assert len(last) == 4 and all(len(episode.step_rewards) == 3 for episode in last)
    assert episode_metrics([group])["episodes/count"] == 4
    assert sum(len(e.own_turns) for e in group) == 2 * (3 + 4 + 4)


def test_at_grpo_compares_the_answers_of_an_agent_to_a_state(tokenizer: Any) -> None:
    group, _ = grown(tokenizer, Echo(3), branches=4, select="best")
    algorithm = ATGRPO(alpha=0.5, group_size=3)
    algorithm.credit([group])
    turns = [turn for sample in samples_of([group], "policy") for turn in sample.turns]
    assert len(turns) == 2 * (3 + 4 + 4) and len({id(turn) for turn in turns}) == len(turns)
    team = {id(t): e.step_rewards[t.step] for e in group for t in e.turns}
    states: dict[Any, list[Turn]] = {}
    for turn in turns:
        states.setdefault((turn.agent, turn.node), []).append(turn)
    assert sorted(len(answers) for answers in states.values()) == [3, 3, 4, 4, 4, 4]
    for answers in states.values():
        assert len({tuple(turn.prompt_ids) for turn in answers}) == 1
        paid = np.array([0.5 * team[id(turn)] + turn.reward for turn in answers])
        expected = (paid - paid.mean()) / (paid.std(ddof=1) + 1e-6)
        np.testing.assert_allclose([turn.advantages for turn in answers], expected, atol=1e-6)


FILTERS: dict[str, list[list[bool]]] = {
    "none": [[True] * 4] * 3,
    "zero_variance": [[True] * 4, [True] * 4, [False] * 4],
    # spreads 0.25, 0.1875 and 0: the flat state and the next one
    "variance": [[True] * 4, [False] * 4, [False] * 4],
    # of [1, 0, 0, 1] and of equals the first two, of [0, 0, 0, 4] the last and the first
    "deviation": [
        [False, False, True, True],
        [False, True, True, False],
        [False, False, True, True],
    ],
}


@pytest.mark.parametrize("name", FILTERS)
def test_at_grpo_leaves_out_what_its_filter_says(name: Any) -> None:
    paid = ([1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 4.0], [0.3] * 4)
    groups = [played(rewards) for rewards in paid]
    for group in groups:
        for number, episode in enumerate(group):
            episode.path = (number,)
    algorithm = ATGRPO(alpha=0.0, filter=name, filter_ratio=0.67 if name == "variance" else 0.5)
    algorithm.credit(groups)
    turns = [[turn for episode in group for turn in episode.turns] for group in groups]
    assert [[turn.advantages is not None for turn in row] for row in turns] == FILTERS[name]
    assert len(samples_of(groups, "p")) == sum(map(sum, FILTERS[name]))
    if name == "deviation":  # the rest is compared with itself
        first = [turn.advantages for turn in turns[0]]
        np.testing.assert_allclose(np.array(first[2:], float), [-0.707106, 0.707106], atol=1e-5)
    left_out = {"zero_variance": 1 / 3, "variance": 2 / 3}.get(name)
    assert algorithm.metrics.get("frac_filtered") == left_out


@pytest.mark.parametrize(
    ("scores", "expected"),
    [([0.0, 0.0, 0.0, 4.0], 0.1875), ([1.0, -1.0], 0.25), ([0.3] * 3, 0.0), ([7.0], 0.0)],
)
def test_variances_are_compared_whatever_the_range_of_rewards(
    scores: list[float], expected: float
) -> None:
    assert range_normalised_variance(np.array(scores)) == pytest.approx(expected)


def test_at_grpo_looks_at_the_length_of_all_that_was_said_in_a_step() -> None:
    """Twice two tokens in the first answer are one more than the limit of 4 less the cache of 1, so
    that the full penalty is taken from it; the other two are short."""
    group = played([2.0, 1.0, 0.0])
    for number, episode in enumerate(group):
        episode.path = (number,)
    first = group.episodes[0].rollouts["a"]
    first.turns.append(Turn("a", "p", [1, 2, 3], [4, 5], [-0.5] * 2, index=1, reward=0.5))
    settings: dict[str, Any] = {"overlong_max_length": 4, "overlong_cache": 1}
    ATGRPO(alpha=0.5, scale_rewards="none", **settings).credit([group])
    scores = [0.5 * 2.0 + 2.5 - 1.0, 0.5 + 1.0, 0.0]
    expected = np.array(scores) - np.mean(scores)
    found = [[turn.advantages for turn in episode.turns] for episode in group]
    assert found[0] == pytest.approx([expected[0]] * 2)
    assert found[1:] == [pytest.approx([x]) for x in expected[1:]]


def test_at_grpo_leaves_out_what_was_cut_or_never_paid() -> None:
    group = played([1.0, 0.0, 0.5])
    for number, episode in enumerate(group):
        episode.path = (number,)
    (cut,), (late,), (other,) = (episode.turns for episode in group)
    cut.finish_reason, late.step = "length", 1
    ATGRPO(alpha=0.0, scale_rewards="none", mask_truncated=True).credit([group])
    assert (cut.advantages, late.advantages, other.advantages) == (None, None, -0.25)


def test_a_state_that_is_solved_is_not_grown(tokenizer: Any) -> None:
    whole, _ = grown(tokenizer, Echo(2), branches=2)
    first = {e.path[:1]: e.step_rewards[0] for e in whole}
    mean = sum(first.values()) / 3
    same, _ = grown(tokenizer, Echo(2), branches=2, termination_threshold=mean)
    assert [e.path for e in same] == [e.path for e in whole]  # it must be exceeded
    ended, engine = grown(tokenizer, Echo(2), branches=2, termination_threshold=mean - 0.1)
    assert len(engine.batches) == 1 and [e.path for e in ended] == [(0,), (1,), (2,)]
    assert all(e.status == "done" and not e.pruned for e in ended)
    algorithm = MAGRPO()
    algorithm.credit([ended])
    returns = [turn.returns for e in ended for turn in e.rollouts["a"].turns]
    assert returns == [first[e.path] for e in ended]


class BreaksLater(Echo):
    """Fails for long answers after the first."""

    def step(self, actions: Any) -> Any:
        if self.left == 1 and len(actions["a"].content) >= 2:
            raise ValueError("too long for me")
        return super().step(actions)

    def spawn(self) -> Any:
        return BreaksLater(self.rounds)


def test_what_led_to_a_failure_is_learned_from_in_another_branch(tokenizer: Any) -> None:
    group, _ = grown(tokenizer, BreaksLater(2), size=16, branches=2)
    MAGRPO().credit([group])
    lost = [episode for episode in group if episode.failed and episode.path[-1] == 0]
    seen = {
        first: [each.rollouts["a"].turns[0] for each in group.valid if each.path[0] == first]
        for first in {episode.path[0] for episode in lost}
    }
    assert any(seen.values()), "some first branches failed and the second did not"
    for turns in seen.values():
        assert [turn.advantages is not None for turn in turns] == [True] * len(turns)
    given = [episode for episode in lost if seen[episode.path[0]]]
    assert not any(episode.rollouts["a"].turns[0].trained for episode in given)


def test_a_tree_that_is_too_large_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"branches=4 gives \d+ episodes .* max_leaves=10"):
        grown(tokenizer, Echo(3), branches=4, max_leaves=10)
    tree = {"name": "tree", "branches": 4, "max_turns": 6}
    config = experiment(tmp_path, "magrpo", workflow=tree)
    with pytest.raises(ConfigError, match=r"branches=4 and 6 turns gives 2048 .* max_leaves=1024"):
        plan_of(config, LiveObjects())
    with pytest.raises(ConfigError, match="select='worst'"):
        Tree(select="worst")  # pyright: ignore[reportArgumentType]


def test_trees_and_algorithms_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'at_grpo' .*='turns' .* set workflow\.name=tree"):
        plan_of(experiment(tmp_path, "at_grpo"), LiveObjects())
    best = {"name": "tree", "select": "best"}
    with pytest.raises(ConfigError, match=r"select='best' .* magrpo .*select=all, or use at_grpo"):
        plan_of(experiment(tmp_path, "magrpo", workflow=best), LiveObjects())
    with pytest.raises(ConfigError, match=r"'at_grpo' has to sample"):
        rows = [{"prompt": "a", "completion": "b"}]
        plan_of(experiment(tmp_path, "at_grpo", data={"dataset": rows}), LiveObjects())
    with pytest.raises(ConfigError, match=r"'grpo' has to sample .* train on rows with sft or dpo"):
        plan_of(experiment(tmp_path, "grpo", data={"dataset": rows}), LiveObjects())


def test_at_grpo_trains_and_goes_on_bit_by_bit(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "environments": [{"env_type": "matrix", "game": "climbing", "rounds": 3}],
        "workflow": {"name": "tree", "select": "best", "branches": 3},
        "policies": {"row": {}, "column": {}},
        "at_grpo": {"group_size": 4},
    }
    rows = resumes_exactly(tmp_path, "at_grpo", **more)
    assert all(np.isfinite(row["loss"]) for row in rows if row.get("loss") is not None)
    plan = arithmetic(
        experiment(tmp_path, "at_grpo", **more), num_agents=2, trained_agents=2, max_turns=3
    )
    assert plan.episodes == 4 * (4 + 2 * 2) and plan.model_calls == 4 * 2 * (4 + 3 + 3)


# -- groups that teach something -------------------------------------------------------------------


class Given(Environment):
    """Pays what the number of the task says: every second task pays all its siblings the same."""

    agents = ("a",)
    blocking = False
    even: float = 0.5

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.seed = seed or 0
        return StepResult({"a": Observation([Message(f"task {self.seed}")])})

    def step(self, actions: dict[str, Message]) -> StepResult:
        said = len(actions["a"].content)
        paid = self.even if self.seed % 2 == 0 else float(said % 5) + 0.1 * (said % 3)
        return StepResult(rewards={"a": Reward(paid)}, done=True)


class Flat(Given):
    """Pays everybody the same."""

    def step(self, actions: dict[str, Message]) -> StepResult:
        return StepResult(rewards={"a": Reward(self.even)}, done=True)


def dynamic(world: str, **settings: Any) -> dict[str, Any]:
    return {
        "environments": [{"env_type": f"test_plans:{world}"}],
        "grpo": {"group_size": 4, "dynamic_sampling": True, **settings},
        "generation": {"max_new_tokens": 8},
    }


def test_groups_are_replaced_until_the_batch_is_full_and_bit_by_bit(tmp_path: Path) -> None:
    steps = [row for row in resumes_exactly(tmp_path, "grpo", **dynamic("Given")) if row["step"]]
    assert len(steps) == 4
    for row in steps:
        assert row["num_groups_trained"] == 4 and row["frac_zero_variance"] == 0
        assert row["episodes/count"] == 4 * row["num_groups_played"]
    assert sum(row["num_groups_played"] for row in steps) > 16
    tasks = [row["task_id"] for row in recorded(tmp_path / "cut")]
    assert len(set(tasks)) == len(tasks) / 4, "no task is taken twice"


def test_refills_end_and_a_run_goes_on_with_what_there_is(tmp_path: Path) -> None:
    config = experiment(tmp_path / "run", "grpo", **dynamic("Flat", max_refills=2))
    run_experiment(config)
    steps = [row for row in logged(tmp_path / "run") if row["step"]]
    assert [row["num_groups_played"] for row in steps] == [12.0] * 4
    assert [row["num_groups_trained"] for row in steps] == [4.0] * 4
    assert all(row["frac_zero_variance"] == 1 for row in steps)
    text = str(arithmetic(config, num_agents=1, trained_agents=1))
    assert "up to 3 times as many" in text


# -- every combination of answers ------------------------------------------------------------------


def combined(payoffs: list[list[float]]) -> Group:
    """Joint actions of two agents with two answers each, as the workflow `cross` leaves them."""
    episodes = []
    for i, j in itertools.product(range(2), repeat=2):
        rollouts = {}
        for agent, number in (("a", i), ("b", j)):
            turn = Turn(agent, "p", [1], [2 + number], [-0.5], reward=payoffs[i][j])
            turn.trained = i == j
            rollouts[agent] = Rollout(agent, "p", "t", [turn])
        reward = payoffs[i][j]
        episode = Episode(f"{i}{j}", Task("t"), rollouts, reward, [reward], "done")
        episode.path, episode.answers = (i,) if i == j else (i, j, 1), {"a": i, "b": j}
        episodes.append(episode)
    return Group(episodes, "t")


CROSS = {
    ("mean", "a"): [1.5, 4.5],
    ("mean", "b"): [2.0, 4.0],
    ("sum", "a"): [3.0, 9.0],
    ("sum", "b"): [4.0, 8.0],
}


@pytest.mark.parametrize("credit", ["mean", "sum"])
@pytest.mark.parametrize("returns", ["joint", "independent"])
def test_an_answer_is_worth_the_joint_actions_that_contain_it(credit: Any, returns: Any) -> None:
    group = combined([[1.0, 2.0], [3.0, 6.0]])
    settings: dict[str, Any] = {"joint_mode": "cross", "cross_credit": credit, "returns": returns}
    MAGRPO(**settings).credit([group])
    for agent in "ab":
        turns = [e.rollouts[agent].turns[0] for e in (group.episodes[0], group.episodes[3])]
        expected = np.array(CROSS[credit, agent])
        assert [turn.returns for turn in turns] == pytest.approx(list(expected), abs=1e-6)
        found = [turn.advantages for turn in turns]
        np.testing.assert_allclose(found, expected - expected.mean(), atol=1e-6)
    assert all(t.advantages is None for e in group.episodes[1:3] for t in e.turns)
    MARLOO(**settings).credit([group])
    best = group.episodes[3].rollouts["a"].turns[0]
    assert best.advantages == pytest.approx(CROSS[credit, "a"][1] - CROSS[credit, "a"][0])
    MAGRPO(**settings, whiten_advantages=True).credit([group])  # CoMLRL's default
    assert best.advantages == pytest.approx(1.0)


def test_a_joint_action_that_failed_is_left_out() -> None:
    group = combined([[1.0, 2.0], [3.0, 6.0]])
    group.episodes[1].status = "error"
    MAGRPO(joint_mode="cross").credit([group])
    first = group.episodes[0].rollouts
    assert first["a"].turns[0].returns == 1.0 and first["b"].turns[0].returns == 2.0


def test_every_combination_is_played_and_each_answer_sampled_once(tokenizer: Any) -> None:
    source, engine = play(tokenizer, Echo(1), spoken, ("a", "b"), Cross(), 3)
    (group,) = run_async(source.take(1))
    assert [len(batch) for batch in engine.batches] == [6]
    assert len(group) == 9 == len({e.id for e in group}) == len({e.path for e in group})
    said: dict[Any, set[str]] = {}
    for episode in group:
        for agent, number in episode.answers.items():
            (turn,) = episode.rollouts[agent].turns
            assert turn.message is not None and turn.reward == len(turn.message.content)
            said.setdefault((agent, number), set()).add(turn.message.content)
    assert len(said) == 6 and all(len(texts) == 1 for texts in said.values())
    assert sum(len(episode.own_turns) for episode in group) == 6
    MAGRPO(joint_mode="cross", group_size=3).credit([group])
    samples = samples_of([group], "policy")
    assert len(samples) == 6 and all(len(sample.turns) == 1 for sample in samples)
    assert [len(each) for each in run_async(source.evaluate(1))] == [1]


@pytest.mark.slow
def test_cross_trains_and_goes_on_bit_by_bit(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "policies": {"row": {"lora": {"r": 2}}, "column": {}},
        "magrpo": {"group_size": 3, "joint_mode": "cross"},
    }
    steps = [row for row in resumes_exactly(tmp_path, "magrpo", **more) if row["step"]]
    assert all(row["episodes/count"] == 4 * 9 and np.isfinite(row["loss"]) for row in steps)
    plan = arithmetic(experiment(tmp_path, "magrpo", **more), num_agents=2, trained_agents=2)
    assert (plan.episodes, plan.sequences, plan.model_calls) == (36, 24, 24)
    assert "24 episodes that combine" in str(plan)


def test_what_cannot_be_crossed_is_refused(tmp_path: Path) -> None:
    world = {"env_type": "matrix", "game": "climbing", "rounds": 2}
    cross = {"group_size": 4, "joint_mode": "cross"}
    with pytest.raises(ConfigError, match=r"'cross' combines .* one joint step.*joint_mode=align"):
        plan_of(experiment(tmp_path, "magrpo", environments=[world], magrpo=cross), LiveObjects())
    with pytest.raises(ConfigError, match=r"17 \*\* 2 = 289 joint .* max_joint_actions=256"):
        plan_of(experiment(tmp_path, "marloo", marloo={**cross, "group_size": 17}), LiveObjects())
    with pytest.raises(ConfigError, match=r"workflow\.name='cross' .* grpo compares .* magrpo"):
        plan_of(experiment(tmp_path, "grpo", workflow={"name": "cross"}), LiveObjects())
    assert MAGRPO(joint_mode="align").joint_mode == "aligned"
