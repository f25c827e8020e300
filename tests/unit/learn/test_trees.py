"""Several answers tried from one state: played once each, compared with each other, learned from
once."""

from pathlib import Path
from typing import Any

import pytest

from mrlm.algorithms.magrpo import MAGRPO
from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError
from mrlm.core.sync_async import run_async
from mrlm.learn.data.batch import pack
from mrlm.learn.data.samples import samples_of
from mrlm.trainer import Trainer
from mrlm.workflows.tree import Tree
from scripted_play import Echo, play, spoken

TURNS, SIBLINGS, BRANCHES = 3, 2, 3
NODES = SIBLINGS * (1 + BRANCHES + BRANCHES**2)


def grown(tokenizer: Any, **more: Any) -> tuple[Group, Any]:
    workflow = Tree(branches=BRANCHES)
    source, engine = play(tokenizer, Echo(TURNS), spoken, ("a", "b"), workflow, SIBLINGS, **more)
    (group,) = run_async(source.take(1))
    return group, engine


def test_every_node_is_asked_once_and_all_of_a_level_together(tokenizer: Any) -> None:
    group, engine = grown(tokenizer)
    assert [len(batch) for batch in engine.batches] == [
        2 * SIBLINGS * BRANCHES**turn for turn in range(TURNS)
    ]
    requests = [request for batch in engine.batches for request in batch]
    assert len({request.key for request in requests}) == len(requests)
    assert len({request.seed for request in requests}) == len(requests)
    assert len(group) == SIBLINGS * BRANCHES ** (TURNS - 1)
    assert len({episode.id for episode in group}) == len(group)
    assert len({episode.path for episode in group}) == len(group)
    assert sum(len(episode.own_turns) for episode in group) == len(requests)
    for episode in group:
        assert episode.status == "done" and len(episode.path) == TURNS
        assert all(len(rollout.turns) == TURNS for rollout in episode.rollouts.values())
        said = [len(turn.message.content) for turn in episode.turns if turn.message]
        assert sum(episode.step_rewards) == pytest.approx(sum(said) / 2)


def test_each_answer_is_learned_from_once_against_answers_to_its_state(tokenizer: Any) -> None:
    group, _ = grown(tokenizer)
    algorithm = MAGRPO(gamma=0.5)
    algorithm.credit([group])
    samples = samples_of([group], "policy", algorithm.spec.unit)
    turns = [turn for sample in samples for turn in sample.turns]
    assert len(turns) == 2 * NODES and len({id(turn) for turn in turns}) == len(turns)
    by_node: dict[tuple[str, str], list[Any]] = {}
    for turn in turns:
        by_node.setdefault((turn.agent, turn.node), []).append(turn)
    assert {len(each) for each in by_node.values()} == {SIBLINGS, BRANCHES}
    for siblings in by_node.values():
        assert len({tuple(turn.prompt_ids) for turn in siblings}) == 1  # the same state
        assert sum(turn.advantages for turn in siblings) == pytest.approx(0, abs=1e-9)
        mean = sum(turn.returns for turn in siblings) / len(siblings)
        for turn in siblings:
            assert turn.advantages == pytest.approx(turn.returns - mean, abs=1e-9)
    assert any(turn.advantages for turn in turns)
    # what the nodes share is computed once
    read = sum(len(turn.prompt_ids) + len(turn.completion_ids) for turn in turns)
    assert len(pack(samples).tree.ids) < read / 3


def test_copies_are_context_and_keep_their_tokens(tokenizer: Any) -> None:
    group, _ = grown(tokenizer)
    first, second = group.episodes[0], group.episodes[1]
    assert first.path[:-1] == second.path[:-1]
    for agent in ("a", "b"):
        old, new = first.rollouts[agent].turns, second.rollouts[agent].turns
        assert [turn.trained for turn in new] == [False, False, True]
        for one, other in zip(old[:2], new[:2], strict=True):
            assert one is not other and one.completion_ids == other.completion_ids
        history = [*new[1].prompt_ids, *new[1].completion_ids]
        assert new[2].prompt_ids[: len(history)] == history


def test_an_evaluation_goes_one_way(tokenizer: Any) -> None:
    source, engine = play(tokenizer, Echo(TURNS), spoken, ("a", "b"), Tree(), 2)
    groups = run_async(source.evaluate(2))
    assert [len(group) for group in groups] == [1, 1]
    assert [len(batch) for batch in engine.batches] == [4] * TURNS


def test_own_returns_of_each_agent(tokenizer: Any) -> None:
    group, _ = grown(tokenizer)
    MAGRPO(returns="independent", gamma=1.0).credit([group])
    last = [turn for turn in group.episodes[0].turns if turn.step == TURNS - 1]
    assert {turn.agent: turn.returns for turn in last} == {
        turn.agent: float(len(turn.message.content)) for turn in last if turn.message
    }


class Uncopied(Echo):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("a live connection")

    def spawn(self) -> Any:
        return Uncopied(self.rounds)


def test_a_world_that_cannot_be_copied_is_named(tokenizer: Any) -> None:
    source, _ = play(tokenizer, Uncopied(), spoken, ("a", "b"), Tree(), 2)
    with pytest.raises(ConfigError, match=r"'world' cannot be copied .*live connection"):
        run_async(source.take(1))


def test_one_branch_is_no_tree() -> None:
    with pytest.raises(ConfigError, match="branches=1"):
        Tree(branches=1)


def settings(tmp_path: Path, algorithm: str) -> dict[str, Any]:
    return {
        "environments": [{"env_type": "scripted_play:Echo"}],
        "workflow": {"name": "tree", "branches": 2, "max_turns": 3},
        "training": {"algorithm": algorithm, "num_iterations": 1, "batch_size": 2},
        "generation": {"max_new_tokens": 4},
        "output_dir": str(tmp_path / "run"),
    }


def test_a_run_over_trees(tmp_path: Path) -> None:
    from mrlm.config import parse_config

    result = Trainer(config=parse_config(settings(tmp_path, "magrpo"))).train()
    assert result.history[-1]["episodes/count"] == 2 * 2 * 4
    with pytest.raises(ConfigError, match=r"workflow\.name='tree' .* such as magrpo"):
        Trainer(config=parse_config(settings(tmp_path, "ppo"))).train()
