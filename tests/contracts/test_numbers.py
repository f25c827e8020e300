"""What a run logs, computed by hand on small cases: failed, pruned and greedy episodes, two
environments, two micro-batches, two policies."""

import math
from pathlib import Path

import numpy as np
import pytest

from logged import ROWS, missing_tests, names, unknown, unwritten
from mrlm import C3Trainer, GRPOTrainer
from mrlm.core.episodes import Episode, Group
from mrlm.core.types import Rollout, Task, Turn
from mrlm.environments.games.matrix import MatrixEnvironment
from mrlm.learn.credit.groups import sibling_metrics
from mrlm.learn.ops import approx_kl
from mrlm.tracking.metric_table import described, metric
from mrlm.training.metrics import by_policy, component_sums, credit_metrics, episode_metrics
from recorded import episodes as recorded


def _turn(agent: str, tokens: int, reward: float = 0.0, step: int = 0, **fields) -> Turn:
    ids = list(range(tokens))
    return Turn(agent, agent, [1], ids, [-1.0] * tokens, reward=reward, step=step, **fields)


def _episode(name: str, *turns: Turn, environment: str = "sums", **fields) -> Episode:
    rollouts: dict[str, Rollout] = {}
    for turn in turns:
        rollouts.setdefault(turn.agent, Rollout(turn.agent, turn.policy)).turns.append(turn)
    fields = {"status": "done"} | fields
    return Episode.recorded(name, Task("t"), rollouts, environment=environment, **fields)


def _groups() -> list[Group]:
    honest = [
        _episode("a", _turn("one", 2, 1.0), _turn("two", 4, 3.0)),  # team: (1 + 3) / 2 = 2
        _episode("b", _turn("one", 6, 0.0, finish_reason="length"), environment="words"),
        _episode("c", _turn("one", 1, 4.0), _turn("one", 3, 2.0, 1), status="truncated"),
    ]
    ignored = [
        _episode("failed", _turn("one", 50, 99.0), status="error"),
        _episode("pruned", _turn("one", 50, 99.0), pruned=True),
        _episode("greedy", _turn("one", 50, 99.0), greedy=True),
    ]
    return [Group(honest[:2], "t"), Group([honest[2], *ignored], "t")]


def test_what_was_played():
    found = episode_metrics(_groups())
    expected = {
        "episodes/count": 4.0,  # the pruned and the greedy one are not looked at
        "episodes/failed": 1 / 4,
        "episodes/truncated": 1 / 4,
        "reward/mean": (2 + 0 + 6) / 3,
        "reward/std": float(np.std([2, 0, 6])),
        "sums/reward/mean": (2 + 6) / 2,
        "words/reward/mean": 0.0,
        "reward/one/mean": (1 + 0 + 6) / 3,
        "reward/two/mean": 3.0,
        "completion_length/mean": (2 + 4 + 6 + 1 + 3) / 5,
        "completion_length/max": 6.0,
        "completion_length/cut": 1 / 5,
        "completion_length/one/mean": (2 + 6 + 1 + 3) / 4,
        "completion_length/two/mean": 4.0,
        "turns/mean": (2 + 1 + 2) / 3,
    }
    assert found == pytest.approx(expected)


def test_lengths_of_an_agent_are_shown_where_there_are_several_that_spoke():
    alone = episode_metrics([Group([_episode("a", _turn("one", 2))])])
    assert "completion_length/mean" in alone and "completion_length/one/mean" not in alone
    silent = episode_metrics([Group([_episode("a", _turn("one", 2), _turn("two", 0))])])
    assert silent["completion_length/one/mean"] == 2.0
    assert "completion_length/two/mean" not in silent


def test_a_missing_reward_is_in_no_mean():
    groups = [
        Group(
            [
                _episode("a", _turn("one", 1, 1.0), _turn("two", 1, 1.0)),
                _episode("b", _turn("one", 1), _turn("two", 1), missing=frozenset({"one", "two"})),
            ]
        )
    ]
    found = episode_metrics(groups)
    assert "sums/reward/mean" not in found, "of one environment it is `reward/mean`"
    assert found["reward/missing"] == 2.0
    assert found["reward/mean"] == 1.0 and found["reward/one/mean"] == 1.0


def test_components_of_one_episode_add_up_by_agent():
    parts = [{"right": 1.0, "short": 0.25}, {}, {"right": 0.5}]
    turns = [_turn(agent, 1, components=each) for agent, each in zip("aba", parts, strict=True)]
    assert component_sums(_episode("e", *turns)) == {"a": {"right": 1.5, "short": 0.25}, "b": {}}


def test_components_are_means_over_episodes():
    groups = _groups()
    first, second = groups[0].episodes
    first.metrics["one/length"], second.metrics["one/length"] = 4.0, 2.0
    # an episode without a component counts as 0: components add up to the reward
    assert episode_metrics(groups)["reward/one/length"] == pytest.approx((4 + 2 + 0) / 3)


def test_what_credit_assigned():
    turns = [
        _turn("one", 2, advantages=1.0),
        _turn("one", 1, advantages=0.0),
        _turn("one", 1, advantages=None),  # not credited: not trained
        _turn("one", 5, advantages=7.0, trained=False),
        _turn("two", 3, advantages=[0.0, 2.0, 4.0]),
    ]
    failed = _episode("f", _turn("two", 9, advantages=9.0), status="error")
    found = credit_metrics([Group([_episode("a", *turns), failed])])
    assert found == pytest.approx(
        {
            "tokens/trained": 6.0,
            "advantage/one/mean": 2 / 3,
            "advantage/one/std": float(np.std([1, 1, 0])),
            "advantage/one/zero": 1 / 2,
            "advantage/two/mean": 2.0,
            "advantage/two/std": float(np.std([0, 2, 4])),
            "advantage/two/zero": 0.0,
            "advantage/mean": 8 / 6,
            "advantage/std": float(np.std([1, 1, 0, 0, 2, 4])),
            "advantage/zero": 1 / 3,
            "tokens/one/share": 3 / 6,
            "tokens/two/share": 3 / 6,
        }
    )


def test_credit_of_one_agent_and_turns_without_tokens():
    """An agent that was answered with nothing has no advantages whose mean could be taken."""
    turns = [_turn("one", 2, advantages=3.0), _turn("one", 0, advantages=5.0)]
    silent = _turn("two", 0, advantages=1.0)
    for group in (Group([_episode("a", *turns)]), Group([_episode("a", *turns, silent)])):
        assert credit_metrics([group]) == {
            "tokens/trained": 2.0,
            "advantage/one/mean": 3.0,
            "advantage/one/std": 0.0,
            "advantage/one/zero": 0.0,
        }


def test_without_episodes_nothing_has_failed():
    greedy = [_episode("greedy", _turn("one", 1, 1.0), greedy=True)]
    for groups in ([], [Group(greedy)]):
        assert episode_metrics(groups) == {
            "episodes/failed": 0.0,
            "episodes/truncated": 0.0,
            "episodes/count": 0.0,
        }


def test_comparisons_that_train_nothing():
    def group(*advantages: float | None) -> Group:
        return Group(
            [_episode(str(i), _turn("one", 1, advantages=a)) for i, a in enumerate(advantages)]
        )

    lost = Group(
        [
            _episode("a", _turn("one", 1, advantages=1.0)),
            _episode("b", _turn("one", 1), status="error"),
        ]
    )
    partly = Group(
        [_episode(str(i), _turn("one", 2, advantages=[a, 0.0])) for i, a in enumerate((1.0, -1.0))]
    )
    found = sibling_metrics([group(1.0, -1.0), group(0.0, 0.0), group(0.0, 0.0), lost, partly])
    assert found == {"frac_zero_variance": 2 / 5, "frac_small_groups": 1 / 5}


def test_policies_are_averaged_and_shown_each():
    found = by_policy({"a": {"loss": 1.0, "kl": 4.0}, "b": {"loss": 3.0}})
    assert found == {"loss": 2.0, "loss/a": 1.0, "loss/b": 3.0, "kl": 4.0, "kl/a": 4.0}
    assert by_policy({"a": {"loss": 1.0}}) == {"loss": 1.0}


def test_the_direction_of_approx_kl():
    """`KL(old || new)` is estimated by `r - 1 - log r`, with r the ratio of new to old on tokens
    that the old policy sampled."""
    import torch

    old, new = math.log(0.5), math.log(0.25)
    difference = torch.tensor([new - old])
    expected = 0.25 / 0.5 - 1 - (new - old)
    assert float(approx_kl(difference)) == pytest.approx(expected)
    assert float(approx_kl(-difference)) == pytest.approx(2 - 1 - math.log(2))


def test_tokens_and_seconds_of_a_run(tiny_path: str):
    trainer = GRPOTrainer(
        tiny_path,
        environment=MatrixEnvironment("xor"),
        num_agents=2,
        share_policy=True,
        num_generations=2,
        batch_size=2,
        max_new_tokens=3,
        report_to="none",
    )
    result = trainer.train(num_iterations=2)
    folder = Path(result.run_folder)
    rows = recorded(folder)
    sampled = {1: 0, 2: 0}
    for row in rows:
        if row["step"] in sampled:
            turns = [turn for agent in row["agents"].values() for turn in agent["turns"]]
            sampled[row["step"]] += sum(turn["tokens"] for turn in turns)
    first, second = (row for row in result.history if row["step"] > 0)
    assert first["tokens/total"] == sampled[1] > 0
    assert second["tokens/total"] == sampled[1] + sampled[2]
    for row, tokens in ((first, sampled[1]), (second, sampled[2])):
        seconds = row["seconds/play"] + row["seconds/learn"]
        assert row["tokens_per_second"] * seconds == pytest.approx(tokens)


def test_every_row_names_a_test_and_every_other_name_is_refused():
    assert missing_tests() == []
    assert sorted(ROWS) == sorted(names()), "the table of metrics and that of its tests"
    assert unwritten() == []
    assert unknown(["eval/reward/mean", "loss/first", "nobody/knows"]) == ["nobody/knows"]


def test_a_logged_name_is_described_by_the_most_literal_row():
    found = described(["eval/entropy/solver", "reward/a/mean", "reward/a/correct", "nobody/knows"])
    assert list(found) == ["eval/entropy/solver", "reward/a/mean", "reward/a/correct"]
    rows = {name: row.name for name in found if (row := metric(name))}
    assert list(rows.values()) == ["entropy", "reward/<agent>/mean", "reward/<component>"]
    assert "nats per token" in found["eval/entropy/solver"]


def test_turns_of_replays_that_are_not_sampled_are_no_tokens(tiny_path: str):
    """Of a replay in a game with one step, one of two answers is sampled again."""
    result = C3Trainer(
        tiny_path,
        environment=MatrixEnvironment("xor"),
        num_agents=2,
        share_policy=True,
        alternatives=3,
        batch_size=2,
        max_new_tokens=1,
        report_to="none",
    ).train(num_iterations=1)
    (row,) = (row for row in result.history if row["step"] > 0)
    assert row["tokens/total"] == 2 * (2 + 2 * 3)
