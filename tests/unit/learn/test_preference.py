"""Preferences over what agents sampled: which answers are compared, and that it trains."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mrlm
from grids import quick
from mrlm import run_experiment
from mrlm.algorithms.dpo import DPO
from mrlm.algorithms.madpo import MADPO
from mrlm.algorithms.malt import MALT
from mrlm.algorithms.online_dpo import OnlineDPO
from mrlm.config import parse_config
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.types import Rollout, Task, Turn
from mrlm.experiment import dry_run
from mrlm.learn.bases.preference import (
    PreferencePair,
    answers_by_state,
    comparable,
    margins,
    pair_samples,
    row_pairs,
    scored,
)
from recorded import episodes as recorded


def said(agent: str, step: int, ids: list[int], reward: float = 0.0, node: str = "") -> Turn:
    return Turn(agent, "p", [1], ids, [-1.0] * len(ids), reward=reward, step=step, node=node)


def episode(
    place: int, said: dict[str, list[int]], reward: float, own: dict[str, float] | None = None
) -> Episode:
    """One joint step: agent -> what it said to the prompt [1]."""
    rollouts = {}
    for agent, ids in said.items():
        turn = Turn(agent, "p", [1], ids, [-1.0] * len(ids), reward=(own or {}).get(agent, reward))
        rollouts[agent] = Rollout(agent, "p", "t", [turn])
    return Episode(f"t/{place}", Task("t"), rollouts, reward, [reward], "done", path=(place,))


def marks(group: Group, agent: str) -> list[float | None]:
    """What credit wrote on the first turn of an agent, by episode."""
    return [each.rollouts[agent].turns[0].advantages for each in group]  # type: ignore[misc]


# -- best against worst ----------------------------------------------------------------------------


def test_the_best_sibling_is_preferred_to_the_worst() -> None:
    rewards = [0.5, 0.9, 0.1, 0.9, 0.1]
    group = Group([episode(i, {"a": [2, i]}, r) for i, r in enumerate(rewards)])
    algorithm = OnlineDPO()
    algorithm.credit([group])
    assert marks(group, "a") == [None, 1.0, None, None, -1.0]
    assert algorithm.metrics == {"frac_dropped_pairs": 0.0}
    samples = algorithm.samples([group], "p")
    assert [sample.unit for sample in samples] == [0, 0] and not algorithm.samples([group], "q")


def test_ties_are_dropped_or_decided_by_order() -> None:
    group = Group([episode(i, {"a": [2, i]}, 0.3) for i in range(3)])
    dropping, first = OnlineDPO(), OnlineDPO(ties="first")
    dropping.credit([group])
    assert marks(group, "a") == [None] * 3
    assert dropping.metrics["frac_dropped_pairs"] == 1.0
    first.credit([group])
    assert marks(group, "a") == [1.0, None, -1.0]


def test_best_and_worst_that_say_the_same_are_no_pair() -> None:
    group = Group([episode(i, {"a": [2, 3]}, r) for i, r in enumerate((0.0, 1.0))])
    algorithm = OnlineDPO()
    algorithm.credit([group])
    assert marks(group, "a") == [None, None] and not algorithm.pairs


def test_failed_episodes_and_wrong_rewards_are_not_compared() -> None:
    group = Group([episode(i, {"a": [2, i]}, r) for i, r in enumerate((1.0, 0.5, 0.2, 9.0))])
    group.episodes[3].status = "error"
    group.episodes[0].reward = float("nan")
    algorithm = OnlineDPO()
    algorithm.credit([group])
    assert marks(group, "a") == [None, 1.0, -1.0, None]


def test_agents_are_ranked_by_their_own_or_the_teams_rewards() -> None:
    rows = [({"a": 1.0, "b": 0.0}, 0.2), ({"a": 0.0, "b": 1.0}, 0.8)]
    for rewards, expected in (("own", ([1, -1], [-1, 1])), ("team", ([-1, 1], [-1, 1]))):
        group = Group(
            [episode(i, {"a": [2, i], "b": [4, i]}, t, own) for i, (own, t) in enumerate(rows)]
        )
        OnlineDPO(rewards=rewards).credit([group])
        assert (marks(group, "a"), marks(group, "b")) == expected


def test_turns_that_read_different_prompts_are_not_compared() -> None:
    group = Group([episode(i, {"a": [2, i]}, float(i)) for i in range(2)])
    for each in group:
        first = each.rollouts["a"].turns[0]
        later = Turn("a", "p", [1, *first.completion_ids, 9], [3], [-1.0], step=1, index=1)
        each.rollouts["a"].turns.append(later)
        each.step_rewards = [0.0, each.reward]
    algorithm = OnlineDPO()
    algorithm.credit([group])
    assert [[t.advantages for t in e.turns] for e in group] == [[-1.0, None], [1.0, None]]
    assert algorithm.metrics == {"frac_dropped_pairs": 0.0}  # what is alone is no pair


def test_a_pair_is_cut_out_of_the_conversation_it_stands_in() -> None:
    """A later turn with the same prompt is a state of its own, and a sample of its own."""
    group = Group([episode(i, {"a": [2]}, float(i)) for i in range(2)])
    for number, each in enumerate(group):
        each.rollouts["a"].turns.append(
            Turn("a", "p", [1, 2, 9], [3, number], [-1.0] * 2, step=1, index=1, reward=number)
        )
        each.rollouts["a"].turns[0].reward, each.step_rewards = 0.0, [0.0, float(number)]
    algorithm = OnlineDPO()
    algorithm.credit([group])
    (pair,) = algorithm.pairs  # the first turns say the same
    assert pair.chosen[0].completion_ids == [3, 1] and pair.rejected[0].completion_ids == [3, 0]


def test_a_team_prefers_the_same_two_episodes_for_every_agent() -> None:
    rewards = [0.5, 0.9, 0.9, 0.1]
    group = Group([episode(i, {"a": [2, i], "b": [4, i]}, r) for i, r in enumerate(rewards)])
    algorithm = MADPO()
    algorithm.credit([group])
    assert marks(group, "a") == marks(group, "b") == [None, 1.0, None, -1.0]


# -- trees -----------------------------------------------------------------------------------------

LEAVES = [[[1, 0], [1, 1]], [[0, 0], [0, 1]]]


def tree(leaves: Any = LEAVES) -> Group:
    """Generator, verifier, refiner, as the workflow `malt` leaves them: everything in one step, and
    what was there before a fork as context."""
    episodes = []
    for g, verdicts in enumerate(leaves):
        for v, refined in enumerate(verdicts):
            for r, reward in enumerate(refined):
                roles = [("generator", "", [g]), ("verifier", f"{g}", [g, v])]
                roles.append(("refiner", f"{g}/{v}", [g, v, r]))
                rollouts = {}
                for depth, (role, node, said) in enumerate(roles):
                    own = not any((g, v, r)[depth + 1 :])
                    turn = Turn(role, "p", [7, *said[:-1]], [5, *said], [-1.0], node=node)
                    turn.logprobs, turn.trained = [-1.0] * len(turn), own
                    rollouts[role] = Rollout(role, "p", "t", [turn])
                episodes.append(
                    Episode(f"{g}{v}{r}", Task("t"), rollouts, reward, [reward], "done")
                )
                episodes[-1].path = (g, v, r)
    return Group(episodes)


def test_an_answer_is_worth_the_mean_of_its_leaves() -> None:
    states = answers_by_state(tree(), "team")
    worth = {
        (role, node): [answer.value for answer in answers]
        for (role, node, _), answers in states.items()
    }
    assert worth[("generator", "")] == [0.75, 0.25]
    assert worth[("verifier", "0")] == [0.5, 1.0] and worth[("verifier", "1")] == [0.0, 0.5]
    assert worth[("refiner", "0/0")] == [1.0, 0.0] and worth[("refiner", "1/0")] == [0.0, 0.0]
    assert sum(len(answers) for answers in states.values()) == 2 + 4 + 8


def test_malt_pairs_the_siblings_of_every_role() -> None:
    algorithm = MALT()
    algorithm.credit([tree()])
    found = [
        (p.chosen[0].agent, p.chosen[0].completion_ids[1:], p.rejected[0].completion_ids[1:])
        for p in algorithm.pairs
    ]
    assert sorted(found) == [
        ("generator", [0], [1]),
        ("refiner", [0, 0, 0], [0, 0, 1]),
        ("refiner", [1, 1, 1], [1, 1, 0]),
        ("verifier", [0, 1], [0, 0]),
        ("verifier", [1, 1], [1, 0]),
    ]
    good = sorted((turn.agent, turn.completion_ids[1:]) for turn in algorithm.good)
    assert good == [
        ("generator", [0]), ("refiner", [0, 0, 0]), ("refiner", [0, 1, 0]), ("refiner", [0, 1, 1]),
        ("refiner", [1, 1, 1]), ("verifier", [0, 1]),
    ]  # fmt: skip
    assert algorithm.metrics["good_answers"] == 6.0


def test_malt_pairs_good_with_bad_only_if_asked() -> None:
    algorithm = MALT(pairing="threshold")
    algorithm.credit([tree()])
    roles = [pair.chosen[0].agent for pair in algorithm.pairs]
    assert sorted(roles) == ["generator", "refiner", "refiner", "verifier"]


def test_malt_counts_pairs_and_tokens_of_each_policy() -> None:
    """Of a there is a pair and two good answers of 5 tokens, of b no pair and two good ones of 6;
    of c a pair, and nothing good."""
    said = [{"a": [2, 0], "b": [4] * 3, "c": [6]}, {"a": [2, 1, 5], "b": [4] * 3, "c": [7]}]
    own = [{"a": 1.0, "b": 0.9, "c": 0.2}, {"a": 0.8, "b": 0.7, "c": 0.1}]
    group = Group([episode(i, said[i], 0.0, own[i]) for i in range(2)])
    for turn in (turn for each in group for turn in each.turns):
        turn.policy = turn.agent.upper()
    algorithm = MALT(rewards="own", threshold=0.6)
    algorithm.credit([group])
    assert [(pair.policy, pair.weight) for pair in algorithm.pairs] == [("A", 3.0), ("C", 1.0)]
    returns = {turn.agent: turn.returns for turn in algorithm.good}
    assert returns == {"a": pytest.approx(3 / 5), "b": pytest.approx(2 / 6)}
    assert algorithm.metrics == {"good_answers": 4.0, "frac_dropped_pairs": pytest.approx(1 / 3)}
    samples = {policy: algorithm.samples([group], policy) for policy in "ABC"}
    units = {policy: [sample.unit for sample in found] for policy, found in samples.items()}
    assert units == {"A": [0, 0, 2, 3], "B": [2, 3], "C": [1, 1]}
    signs = [turn.advantages for sample in samples["A"] for turn in sample.turns]
    assert signs == [3.0, -3.0, 0.0, 0.0]


def test_malt_compares_with_its_threshold_from_both_sides() -> None:
    """An answer worth just the threshold is not good; against a good one it is the other side."""
    rewards = (0.5, 0.75, 0.25)
    for pairing, expected in (("threshold", [(1, 0), (1, 2)]), ("order", [(1, 0), (0, 2), (1, 2)])):
        group = Group([episode(i, {"a": [2, i]}, reward) for i, reward in enumerate(rewards)])
        algorithm = MALT(pairing=pairing, threshold=0.5)  # type: ignore[arg-type]
        algorithm.credit([group])
        sides = [
            (p.chosen[0].completion_ids[1], p.rejected[0].completion_ids[1])
            for p in algorithm.pairs
        ]
        assert sides == expected
        assert [turn.completion_ids[1] for turn in algorithm.good] == [1]


@pytest.mark.parametrize("part", ["sft_coef", "dpo_coef"])
def test_a_part_of_malt_that_weighs_nothing_is_left_out(part: str) -> None:
    algorithm = MALT(**{part: 0.0})
    algorithm.credit([tree()])
    assert (len(algorithm.pairs), len(algorithm.good)) == ((5, 0) if part == "sft_coef" else (0, 6))


def test_every_node_of_a_tree_is_a_state() -> None:
    algorithm, group = OnlineDPO(rewards="team"), tree()
    algorithm.credit([group])
    assert len(algorithm.pairs) == 5  # generator; a verifier under each; refiners that differ
    assert algorithm.metrics["frac_dropped_pairs"] == pytest.approx(2 / 7)


# -- by hand ---------------------------------------------------------------------------------------


def test_what_followed_an_answer_is_the_agents_own_or_the_teams() -> None:
    """From the answer's joint step on; of a team without steps, the whole."""
    rows = [said("a", 0, [2], 1.0), said("a", 1, [3], 2.0), said("a", 3, [4], 4.0)]
    other = said("b", 1, [5], 100.0)
    parts = {"a": Rollout("a", "p", "t", rows), "b": Rollout("b", "p", "t", [other])}
    one = Episode("e", Task("t"), parts, 31.0, [1.0, 2.0, 4.0, 24.0], "done")
    for rewards, expected in (("own", [7.0, 6.0, 4.0]), ("team", [31.0, 30.0, 24.0])):
        states = answers_by_state(Group([one]), rewards)
        (answers,) = (found for (agent, *_), found in states.items() if agent == "a")
        assert [answer.value for answer in answers] == expected
    one.step_rewards = []
    states = answers_by_state(Group([one]), "team")
    assert [answer.value for found in states.values() for answer in found] == [31.0] * 4


def test_an_answer_without_a_finite_return_is_left_out() -> None:
    rows = [said("a", 0, [2]), said("a", 1, [3])]
    one = Episode("e", Task("t"), {"a": Rollout("a", "p", "t", rows)}, 3.0, [1.0, 2.0], "done")
    one.step_rewards = [math.inf, 2.0]
    ((_, (answer,)),) = answers_by_state(Group([one]), "team").items()
    assert answer.turn is rows[1] and answer.returns == [2.0]


def test_leaves_of_an_answer_are_the_episodes_that_go_through_it() -> None:
    """The agent is silent in one of them."""
    group = tree()
    for each in group:
        each.rollouts["generator"].turns[0].reward = each.reward
    del group.episodes[1].rollouts["generator"]
    states = answers_by_state(group, "own")
    (answers,) = (found for (role, *_), found in states.items() if role == "generator")
    first, second = answers
    assert (first.returns, second.returns) == ([1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0])
    assert (first.value, second.value) == (0.75, 0.25)


@pytest.mark.parametrize(
    ("rewards", "pair"),
    [
        ([0.5, 0.1, 0.9], (2, 1)), ([0.9, 0.1, 0.1], (0, 2)), ([0.9, 0.9, 0.1], (0, 2)),
        ([0.3, 0.3], (0, 1)), ([0.3, 0.3, 0.3], None), ([0.3], None),
    ],
)  # fmt: skip
def test_rows_are_the_best_against_the_worst(
    rewards: list[float], pair: tuple[int, int] | None
) -> None:
    group = Group([episode(i, {"a": [2, i]}, reward) for i, reward in enumerate(rewards)])
    turns = [each.rollouts["a"].turns for each in group]
    found = row_pairs(group)
    assert [(p.chosen, p.rejected) for p in found] == (
        [] if pair is None else [(turns[pair[0]], turns[pair[1]])]
    )
    for turn in (turn for each in turns for turn in each):
        turn.reward = 0.0  # the episode's reward decides, whoever of a team got it
    assert [each.reward for each in group] == rewards and len(row_pairs(group)) == len(found)


def test_sides_that_differ_in_their_prompts_alone_are_no_pair() -> None:
    def side(prompt: list[int], *answers: list[int]) -> Rollout:
        turns = [said("a", i, ids) for i, ids in enumerate(answers)]
        turns[0].prompt_ids = prompt
        return Rollout("a", "p", "t", turns)

    one = side([1], [2], [3])
    assert not comparable(one, side([1], [2], [3])) and not comparable(one, side([9], [2], [4]))
    assert comparable(one, side([1], [2], [4])) and comparable(one, side([1], [2]))
    one.turns[0].trained = False  # then the second is the first
    assert comparable(one, side([1], [2], [3]))


def test_samples_of_pairs_have_their_weight_and_sign() -> None:
    def pair(policy: str, weight: float, *said_then: list[int]) -> PreferencePair:
        sides = []
        for first in (2, 3):
            ids = [[first], *said_then]
            turns = [Turn("a", policy, [1, i], each, [-1.0]) for i, each in enumerate(ids)]
            sides.append(turns)
        return PreferencePair(*sides, weight)

    pairs = [pair("p", 0.5), pair("q", 1.0), pair("p", 2.0, [4])]
    found = pair_samples(pairs, "p")
    assert [(s.unit, [t.advantages for t in s.turns]) for s in found] == [
        (0, [0.5]),
        (0, [-0.5]),
        *((2, [2.0]), (2, [2.0]), (2, [-2.0]), (2, [-2.0])),
    ]
    assert [s.rollout for s in found[2:]] == [found[2].rollout] * 2 + [found[4].rollout] * 2
    assert len({s.rollout for s in found}) == 4
    assert pairs[0].chosen[0].advantages is None  # copies
    assert [each.policy for each in pairs] == ["p", "q", "p"] and pair("p", 1.0).weight == 1.0
    pairs[2].mark()
    assert [t.advantages for t in pairs[2].chosen + pairs[2].rejected] == [1.0, 1.0, -1.0, -1.0]


def test_what_is_logged_of_pairs() -> None:
    found = margins(torch.tensor([1.0, 2.0, 0.5]), torch.tensor([0.5, 2.0, 3.0]))
    assert {name: column.tolist() for name, column in found.items()} == {
        "rewards/chosen": [1.0, 2.0, 0.5],
        "rewards/rejected": [0.5, 2.0, 3.0],
        "rewards/margins": [0.5, 0.0, -2.5],
        "rewards/accuracies": [1.0, 0.5, 0.0],  # a tie
    }
    algorithm = DPO()
    rows = [Group([episode(i, {"a": [2, i * n]}, 0.0) for i in range(2)]) for n in (1, 0, 1, 1)]
    dropped = rows[1].episodes[0].rollouts["a"].turns[0]
    dropped.advantages = 1.0
    algorithm.credit(rows)
    assert algorithm.metrics == {"frac_dropped_pairs": 0.25} and dropped.advantages is None
    algorithm.credit([])
    assert algorithm.metrics == {"frac_dropped_pairs": 0.0} and algorithm.pairs == []


def test_a_conversation_is_read_to_its_last_token() -> None:
    first = [Turn("a", "p", [1], [2, 3]), Turn("a", "p", [1, 2, 3, 4], [5])]
    found = scored([*first, Turn("b", "q", [1, 2, 3, 4, 5, 6], [7, 8, 9])])
    assert (found.agent, found.policy) == ("b", "q")
    assert found.prompt_ids == [1, 2, 3, 4, 5, 6, 7, 8, 9] and found.completion_ids == [9]


# -- two steps end to end --------------------------------------------------------------------------


def config(algorithm: str, seats: list[str], folder: Path, **changes: Any) -> Any:
    data: dict[str, Any] = {
        "experiment_name": "preferred",
        "output_dir": str(folder),
        "environments": [{"env_type": "small_environments:Sums", "agents": seats}],
        "training": {
            "algorithm": algorithm,
            "num_iterations": 2,
            "batch_size": 2,
            "learning_rate": 1e-3,
            "report_to": "none",
        },
        "generation": {"max_new_tokens": 4},
    }
    for key, value in changes.items():
        data[key] = {**data.get(key, {}), **value} if isinstance(value, dict) else value
    return parse_config(data)


TEAMS: dict[str, dict[str, Any]] = {
    "shared": {"policies": {"both": {}}},
    "separate": {"policies": {"ann": {}, "bob": {}}},
    "adapters": {"policies": {"ann": {"lora": {"r": 2}}, "bob": {"lora": {"r": 2}}}},
    "one frozen": {"policies": {"ann": {}, "bob": {"trainable": False}}},
}


@pytest.mark.parametrize("team", quick(TEAMS, 2))
@pytest.mark.parametrize("algorithm", ["online_dpo", "madpo"])
def test_a_team_trains_on_what_it_says(algorithm: str, team: str, tmp_path: Path) -> None:
    frequent = {algorithm: {"ref_update_freq": 1}}
    whole = config(algorithm, ["ann", "bob"], tmp_path / "run", **TEAMS[team], **frequent)
    history = run_experiment(whole).history
    losses = [value for row in history for key, value in row.items() if key == "loss"]
    assert losses and losses == pytest.approx([np.log(2)] * len(losses), abs=1e-5)
    assert all(row["grad_norm"] > 0 for row in history)


@pytest.mark.parametrize("workflow", ["tree", "turns"])
def test_relay_trains_where_prompts_are_the_same(workflow: str, tmp_path: Path) -> None:
    """The second agent reads what the first one said, so that its answers meet in trees only."""
    worlds = [{"env_type": "relay"}]
    team = {"policies": {"first": {}, "second": {}}}
    rows = {"online_dpo": {"ties": "first"}, "workflow": {"name": workflow}}
    whole = config("online_dpo", [], tmp_path / "run", **team, **rows)
    whole = whole.merged({"environments": worlds})
    history = run_experiment(whole).history
    assert "loss/first" in history[0]
    assert ("loss/second" in history[0]) == (workflow == "tree")


@pytest.mark.parametrize(
    "policies", [pytest.param(["team"], marks=pytest.mark.slow), ["g", "v", "r"]]
)
def test_malt_trains_three_roles(policies: list[str], tmp_path: Path) -> None:
    roles = ["g", "v", "r"]
    team = {
        "policies": {name: {} for name in policies},
        "agents": {name: {"system_prompt": f"You are {name}."} for name in roles},
        "workflow": {"name": "malt"},
        "evaluation": {"episodes": 2},
    }
    history = run_experiment(config("malt", ["agent"], tmp_path / "run", **team)).history
    last = history[-1]
    assert all(np.isfinite(value) for value in last.values() if isinstance(value, float))
    for name in policies:
        place = f"/{name}" if len(policies) > 1 else ""
        assert last[f"grad_norm{place}"] > 0 and f"dpo_loss{place}" in last
    assert recorded(tmp_path / "run")


def test_malt_runs_on_chains_too(tmp_path: Path) -> None:
    history = run_experiment(config("malt", ["ann", "bob"], tmp_path / "run")).history
    assert any(row.get("grad_norm/ann", 0.0) > 0 for row in history)


# -- rows of a team --------------------------------------------------------------------------------


def joint(first: str, second: str) -> list[dict[str, str]]:
    return [
        {"role": "assistant", "agent": "ann", "content": first},
        {"role": "assistant", "agent": "bob", "content": second},
    ]


ROWS = [
    {"prompt": "Say.", "chosen": joint("yes", "sure"), "rejected": joint("yes", "never")},
    {"prompt": "Say.", "chosen": joint("good", "fine"), "rejected": joint("bad", "fine")},
]


@pytest.mark.parametrize("algorithm", ["madpo", "dpo"])
def test_rows_may_hold_a_preference_of_a_team(algorithm: str, tmp_path: Path) -> None:
    """In the first row the second agent's answers differ and the prompts do not; in the second the
    first agent's do, and then the other one reads different things, so that it learns nothing."""
    rows = {"data": {"dataset": ROWS}, **TEAMS["shared"]}
    history = run_experiment(config(algorithm, ["ann", "bob"], tmp_path / "run", **rows)).history
    assert history[0]["frac_dropped_pairs"] == pytest.approx(0.5)
    assert history[0]["loss"] == pytest.approx(np.log(2), abs=1e-5)
    assert history[1]["loss"] < np.log(2) and history[1]["rewards/margins"] > 0


def test_pairs_are_asked_for_where_madpo_gets_rows() -> None:
    rows = [{"prompt": "Say.", "completion": "yes"}]
    with pytest.raises(ConfigError, match="needs chosen and rejected"):
        mrlm.MADPOTrainer(train_dataset=rows, report_to="none").train(num_iterations=1)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "fields", "said"),
    [
        ("online_dpo", {"group_size": 1}, "group_size"),
        ("online_dpo", {"ties": "coin"}, "ties"),
        ("spin", {"ref_update_freq": 1}, "rows_per_round"),
        ("spin", {"loss_type": "ipo"}, "loss_type"),
        ("dpo", {"label_smoothing": 0.1, "loss_type": "hinge"}, "label_smoothing"),
        ("malt", {"pairing": "random"}, "pairing"),
    ],
)
def test_what_cannot_be_is_refused(algorithm: str, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_config({"training": {"algorithm": algorithm}, algorithm: fields})


def test_trees_of_malt_need_one_seat(tmp_path: Path) -> None:
    team = {"workflow": {"name": "malt"}, **TEAMS["separate"]}
    with pytest.raises(ConfigError, match="workflow tree"):
        run_experiment(config("malt", ["ann", "bob"], tmp_path / "run", **team))
    with pytest.raises(ConfigError, match="branches=1"):
        run_experiment(
            config("malt", ["ann"], tmp_path / "r", workflow={"name": "malt", "branches": 1})
        )


def test_the_plan_counts_the_tree(tmp_path: Path) -> None:
    roles = {"workflow": {"name": "malt"}, "agents": {name: {} for name in "gvr"}}
    whole = config("malt", ["agent"], tmp_path / "r", policies={"team": {}}, **roles)
    text, problems = dry_run(whole)
    assert not problems and "2 tasks x 2 x 2^2 branches = 16 episodes" in text
