"""Outer loops: self-play on a data set, references that move, and runs that go on where they were
killed."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import mrlm
from grids import quick
from logged_rows import logged
from mrlm import Callback, default_model, run_experiment
from mrlm.algorithms.dpo import DPO
from mrlm.algorithms.spin import SPIN
from mrlm.build.sources import total_steps
from mrlm.config import TrainingConfig, parse_config
from mrlm.core.chat import Chat
from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError
from mrlm.core.rounds import Rounds
from mrlm.core.types import SamplingParams
from mrlm.engines.scripted import ScriptedEngine
from mrlm.learn.checkpoint import read_checkpoint, write_checkpoint
from mrlm.learn.policy.lora import add_adapter
from mrlm.learn.policy.policy import Policy
from mrlm.learn.policy.reference import renew
from mrlm.play.agent import AgentSettings
from mrlm.play.sources.rows import Grouping, RowSource
from mrlm.play.sources.self_play_pairs import SelfPlayPairs, parted

pytestmark = pytest.mark.system

ROWS = [{"prompt": f"{i}+{i}=", "completion": str(2 * i)} for i in range(4)]


def config(algorithm: str, folder: Path, **changes: Any) -> Any:
    data: dict[str, Any] = {
        "experiment_name": "outer",
        "output_dir": str(folder),
        "training": {
            "algorithm": algorithm,
            "batch_size": 2,
            "learning_rate": 1e-3,
            "save_steps": 1,
            "report_to": "none",
        },
        "generation": {"max_new_tokens": 4},
    }
    for key, value in changes.items():
        data[key] = {**data.get(key, {}), **value} if isinstance(value, dict) else value
    return parse_config(data)


def spin(folder: Path, **changes: Any) -> Any:
    rounds = {"training": {"num_epochs": 3, **changes.pop("training", {})}}
    return config("spin", folder, data={"dataset": ROWS}, **rounds, **changes)


# -- the arithmetic --------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [Rounds(4, 2), Rounds(5, 2, 2, True), Rounds(1, 8, 1, True)])
def test_rounds_follow_each_other(rounds: Rounds) -> None:
    steps = [(k, i) for k in range(4) for i in range(rounds.length(k))]
    assert [rounds.at(step) for step in range(len(steps))] == steps
    assert rounds.total(4) == len(steps)


def test_epochs_are_parts_of_counted_tasks_and_whole_rounds() -> None:
    part, dpo = TrainingConfig(num_epochs=0.6, batch_size=3), DPO().spec
    assert total_steps(part, dpo, 16) == 4
    for spec, tasks, unit in ((SPIN().spec, 16, "rounds"), (dpo, None, "iterations")):
        with pytest.raises(
            ConfigError, match=rf"num_epochs: 0\.6 .* whole number of {unit}; use 1"
        ):
            total_steps(part, spec, tasks)
    with pytest.raises(ConfigError, match=r"num_epochs: must be greater than 0, not -1"):
        TrainingConfig(num_epochs=-1)


def rounds_of(algorithm: SPIN, tasks: int, batch_size: int) -> Rounds:
    plan = algorithm.spec.sampling.rounds
    assert plan is not None
    return plan.over(tasks, batch_size)


def test_rounds_are_twice_as_long_with_the_answers_of_the_round_before() -> None:
    rounds = rounds_of(SPIN(rows_per_round=4, passes_per_round=3), 100, 2)
    assert [rounds.length(0), rounds.length(1), rounds.length(2)] == [6, 12, 12]
    alone = rounds_of(SPIN(use_previous=False), 10, 4)
    assert [alone.length(0), alone.length(1)] == [3, 3]


# -- self-play -------------------------------------------------------------------------------------

TEAMS: dict[str, dict[str, Any]] = {
    "whole": {},
    "adapter": {"policies": {"policy": {"lora": {"r": 2, "dropout": 0.0}}}},
    "two": {"policies": {"one": {}, "two": {"lora": {"r": 2}}}, "agents": {"one": {}, "two": {}}},
}


@pytest.mark.parametrize("team", quick(TEAMS, ["two"]))
def test_the_loss_is_log_two_where_a_round_begins(team: str, tmp_path: Path) -> None:
    history = run_experiment(spin(tmp_path / "run", **TEAMS[team])).history
    assert [row["step"] for row in history] == list(range(1, 11))  # 2 + 4 + 4 iterations
    losses = [row["loss"] for row in history]
    starts = [0, 2, 6]
    for step, loss in enumerate(losses):
        if step in starts:
            assert loss == pytest.approx(math.log(2), abs=1e-5)
            assert history[step]["rewards/margins"] == pytest.approx(0.0, abs=1e-5)
        else:
            assert abs(loss - math.log(2)) > 1e-4
    assert losses[-1] < math.log(2)


def test_hinge_begins_at_one(tmp_path: Path) -> None:
    changes = {"spin": {"loss_type": "hinge"}, "training": {"num_iterations": 1}}
    (row,) = run_experiment(spin(tmp_path / "run", **changes)).history
    assert row["loss"] == pytest.approx(1.0, abs=1e-5)


class Killed(Exception):
    """The run ends at once and saves nothing."""


class Kill(Callback):
    """Kills a run after some of its steps, the first time they come."""

    def __init__(self, *steps: int) -> None:
        self.steps = list(steps)

    def on_step_end(self, run: Any, metrics: Any) -> None:
        if self.steps and run.step == self.steps[0]:
            del self.steps[0]
            raise Killed


OUTER: dict[str, dict[str, Any]] = {
    "sft": {
        "environments": [{"env_type": "small_environments:Sums"}],
        "sft": {"collect_every": 4},
        "training": {"num_iterations": 6},
    },
    "spin": {"data": {"dataset": ROWS}, "training": {"num_epochs": 2}},
    "online_dpo": {
        "environments": [{"env_type": "small_environments:Sums"}],
        "online_dpo": {"ref_update_freq": 2},
        "training": {"num_iterations": 6},
    },
}


@pytest.mark.parametrize("team", [pytest.param("whole", marks=pytest.mark.slow), "adapter"])
@pytest.mark.parametrize(
    "algorithm", [pytest.param(n, marks=[pytest.mark.slow] * (n != "online_dpo")) for n in OUTER]
)
def test_a_run_killed_between_iterations_goes_on_bit_by_bit(
    algorithm: str, team: str, tmp_path: Path
) -> None:
    """Where a round begins, inside one, and before anything was renewed."""
    changes = {**OUTER[algorithm], **TEAMS[team]}
    run_experiment(config(algorithm, tmp_path / "whole", **changes))
    loaded = config(algorithm, tmp_path / "parts", **changes)
    kill = Kill(2, 3, 5)
    for attempt in range(5):
        resume = tmp_path / "parts" if attempt else None
        try:
            run_experiment(loaded, resume=resume, callbacks=[kill])
        except Killed:
            continue
        break
    expected, found = logged(tmp_path / "whole"), logged(tmp_path / "parts")
    assert found == expected and not kill.steps
    assert len({row["loss"] for row in expected}) > 3 and len(expected) == 6


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(default_model())


def opposed(
    tokenizer: Any, engine: Any, rows: Any = ROWS, rounds: Rounds | None = None
) -> SelfPlayPairs:
    sampling = SamplingParams(max_new_tokens=4, temperature=0.5)
    seat = AgentSettings("agent", "policy", Chat(tokenizer), sampling, max_prompt_tokens=50)
    seats = {"agent": seat}
    source = RowSource(rows, Grouping(seats), seed=0, shuffle=False)
    return SelfPlayPairs(
        source, seats, {"policy": engine}, rounds or Rounds(len(rows), len(rows)), 0
    )


def taken(source: SelfPlayPairs, count: int = 4) -> list[Group]:
    return asyncio.run(source.take(count))


@pytest.mark.parametrize("text", ["no", "nope"])
def test_both_answers_end_alike_and_are_scored_alike(tokenizer: Any, text: str) -> None:
    """Also one that ran into the token limit, else having an end would tell them apart."""
    engine = ScriptedEngine([text], tokenizer)
    groups = taken(opposed(tokenizer, engine))
    for group in groups:
        given, sampled = (episode.rollouts["agent"].turns[0] for episode in group)
        assert given.prompt_ids == sampled.prompt_ids and given.prompt_ids in asked(engine)
        assert given.completion_ids[-1] == sampled.completion_ids[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(sampled.completion_ids[:-1]) == text
        assert given.sampling == sampled.sampling == SamplingParams()
        assert [episode.reward for episode in group] == [1.0, 0.0]
    algorithm = SPIN()
    algorithm.credit(groups)
    signs = [[turn.advantages for turn in e.turns] for group in groups for e in group]
    assert signs == [[1.0], [-1.0]] * 4


@pytest.mark.parametrize("text", ["4", "", "  "])
def test_answers_that_say_nothing_new_are_dropped(tokenizer: Any, text: str) -> None:
    groups = taken(opposed(tokenizer, ScriptedEngine([text], tokenizer), rows=ROWS[2:3]), 1)
    algorithm = SPIN()
    algorithm.credit(groups)
    assert not algorithm.pairs and algorithm.metrics["frac_dropped_pairs"] == 1.0
    assert algorithm.samples(groups, "policy") == []


def test_the_last_answer_of_a_conversation_is_compared(tokenizer: Any) -> None:
    said = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    row = {"messages": [{"role": role, "content": content} for role, content in said]}
    (group,) = taken(opposed(tokenizer, ScriptedEngine(["no"], tokenizer), [row]), 1)
    given, sampled = (episode.rollouts["agent"] for episode in group)
    assert "b<|im_end|>" in tokenizer.decode(given.turns[0].prompt_ids)
    assert [message.content for message in sampled.messages] == ["a", "b", "c", "no"]
    assert len(given.turns) == len(sampled.turns) == 1


def test_a_round_learns_from_its_answers_and_those_before(tokenizer: Any) -> None:
    said = ["zer"]
    engine = ScriptedEngine(lambda request: said[-1], tokenizer)
    source = opposed(tokenizer, engine, rounds=Rounds(4, 4, 1, previous=True))
    assert {texts(group)[1] for group in taken(source)} == {"zer"}
    said.append("one")
    later = [texts(group) for _ in range(2) for group in taken(source)]
    assert sorted(later) == sorted((str(2 * i), word) for i in range(4) for word in ("zer", "one"))
    said.append("two")
    found = [texts(group)[1] for _ in range(2) for group in taken(source)]
    assert sorted(found) == ["one"] * 4 + ["two"] * 4
    assert len(asked(engine)) == 12


def asked(engine: ScriptedEngine) -> list[list[int]]:
    return [request.prompt_ids for batch in engine.batches for request in batch]


def texts(group: Group) -> tuple[str, ...]:
    return tuple(episode.rollouts["agent"].messages[-1].content for episode in group)


def test_a_prompt_that_cannot_be_answered_is_named(tokenizer: Any) -> None:
    rows = [{"prompt": "x" * 60, "completion": "y"}]
    with pytest.raises(ConfigError, match=r"row 1: .*tokens.*truncate"):
        taken(opposed(tokenizer, ScriptedEngine(["no"], tokenizer), rows), 1)


def test_what_follows_the_end_token_is_no_part_of_an_answer(tokenizer: Any) -> None:
    chat, eos = Chat(tokenizer), tokenizer.eos_token_id
    yes, line = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("yes", "\n"))
    assert parted(chat, [*yes, eos, *line]) == (yes, [eos])
    assert parted(chat, [*yes, *line]) == ([*yes, *line], [])
    assert parted(chat, [eos]) == ([], [eos]) and parted(chat, []) == ([], [])


def test_spin_needs_rows() -> None:
    with pytest.raises(ConfigError, match=r"data\.dataset"):
        mrlm.SPINTrainer(environment=mrlm.QASolverEnv(), report_to="none").train(num_iterations=1)


# -- references ------------------------------------------------------------------------------------


def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(default_model())


def lora(base: Any, trained: bool) -> Any:
    settings = {"r": 2, "alpha": 4, "dropout": 0.0, "target_modules": "all-linear"}
    wrapped = add_adapter(base, "mine", settings)
    if trained:
        shift(wrapped)
    return wrapped


def shift(weights: Any) -> None:
    with torch.no_grad():
        for key, value in weights.named_parameters():
            if value.requires_grad and "reference" not in key:
                value.add_(0.05 * torch.randn_like(value))


def scores(learner: Any) -> torch.Tensor:
    """Log-probs of the policy and the reference on a pair, one row each."""
    rows = []
    for text in ("yes", "no"):
        rollout = mrlm.Rollout(task_id="t")
        rollout.add_messages(mrlm.Message("?"), mrlm.Message(text, mrlm.Role.ASSISTANT))
        rows.append(rollout)
    batch = learner.batch(rows, [1.0, 0.0])
    with torch.no_grad():
        own = learner.weights_of.forward(batch).logprobs
    return torch.stack([own, learner.weights_of.reference_logprobs(batch)])


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("kind", ["whole", "new adapter", "trained adapter"])
def test_the_reference_is_the_policy_as_it_was(kind: str, lean: bool, tokenizer: Any) -> None:
    """Also where training goes on from an adapter: then with all adapters off it is another one."""
    base = model()
    weights = base if kind == "whole" else lora(base, trained=kind == "trained adapter")
    adapter = None if kind == "whole" else "mine"
    policy = Policy("policy", weights, tokenizer, adapter=adapter, lean=lean)
    learner = mrlm.Learner(policy, None, DPO())
    torch.manual_seed(0)
    before, reference = scores(learner)
    torch.testing.assert_close(reference, before, atol=1e-5, rtol=0)
    shift(weights)
    after, kept = scores(learner)
    assert (after - before).abs().max() > 1e-3
    torch.testing.assert_close(kept, before, atol=1e-5, rtol=0)
    for _ in range(2):
        renew(policy)
        moved, renewed = scores(learner)
        torch.testing.assert_close(moved, renewed, atol=1e-5, rtol=0)
        shift(weights)
    names = [key for key in policy.named_parameters() if "reference" in key]
    assert not names, "the optimiser must not step the reference"


def test_an_adapter_may_be_compared_with_another_model(tokenizer: Any) -> None:
    theirs = model()
    shift(theirs)
    learner = mrlm.Learner(lora(model(), trained=False), tokenizer, DPO(), reference=theirs)
    own, reference = scores(learner)
    assert (own - reference).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["whole", "adapter"])
def test_a_reference_that_moved_is_saved_bit_by_bit(
    kind: str, tokenizer: Any, tmp_path: Path
) -> None:
    def fresh() -> Policy:
        weights = model() if kind == "whole" else lora(model(), trained=False)
        adapter = None if kind == "whole" else "mine"
        return Policy("policy", weights, tokenizer, adapter=adapter)

    policy = fresh()
    learner = mrlm.Learner(policy, None, DPO())
    policy.save_reference(tmp_path / "still")
    assert not (tmp_path / "still").exists()
    shift(policy.model)
    renew(policy)
    expected = scores(learner)[1]
    shift(policy.model)
    policy.save_reference(tmp_path / "moved")
    other = fresh()
    again = mrlm.Learner(other, None, DPO())
    other.load_reference(tmp_path / "moved")
    assert torch.equal(scores(again)[1], expected)
    other.load_reference(tmp_path / "still")
    assert torch.equal(scores(again)[1], expected)
    other = fresh()
    again = mrlm.Learner(other, None, DPO())
    read_checkpoint(write_checkpoint(tmp_path, 1, [learner], {}, 2), [again])
    assert torch.equal(scores(again), scores(learner)) and torch.equal(scores(again)[1], expected)
