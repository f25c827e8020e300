"""`mismatch_kl`: what is trained on was sampled with the weights that are trained, whatever the
algorithm, the engine, the binding, the head, the optimiser, the temperature and the precision."""

import itertools
import json
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from families import family
from foreign import untied
from mrlm.build.run import build
from mrlm.build.served_policies import house_of_config
from mrlm.config import parse_config
from mrlm.core.environment import Environment
from mrlm.core.errors import CheckError, ConfigError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Observation, Reward, SamplingParams, StepResult, Task, Turn
from mrlm.learn import mismatch
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.data.batch import Loss, Outputs, Sample, pack
from mrlm.learn.meter import Mean, Sum
from mrlm.learn.mismatch import MISMATCH, FirstLook, first_passes, lag_kl, mismatch_metrics, tally
from mrlm.learn.policy.policy import Policy, own_dropout, random_forward
from mrlm.serving.policies.hub import PolicyHub
from mrlm.train import train
from mrlm.training.run import Callback, Run
from policy_server import Doors


def turn(agent: str = "a", **changes: Any) -> Turn:
    """Two tokens, to which the sampler gives log-probs of -1 and -2."""
    settings = {"logprobs": [-1.0, -2.0], "sampling": SamplingParams(temperature=1.0)} | changes
    return Turn(agent, "p", [1, 2], **{"completion_ids": [3, 4], **settings})


def batch_of(turns: Sequence[Turn]) -> Any:
    return pack([Sample([1, 2, 3, 4], [each], [2], i, i) for i, each in enumerate(turns)])


# -- by hand ---------------------------------------------------------------------------------------


def k3(sampler: float, trainer: float) -> float:
    """`r - 1 - log r`, with `r` the trainer's probability over the sampler's."""
    ratio = math.exp(trainer - sampler)
    return ratio - 1 - math.log(ratio)


def test_the_divergence_goes_from_the_sampler_to_the_trainer() -> None:
    """What the sampler gives more is counted linearly, what it gives less exponentially."""
    less, more = k3(-1.0, 1.0), k3(-1.0, -3.0)
    assert less == pytest.approx(math.e**2 - 3) and more == pytest.approx(math.e**-2 + 1)
    found = mismatch.divergence(torch.tensor([-1.0, -1.0]), torch.tensor([1.0, -3.0]))
    assert found.tolist() == pytest.approx([less, more])


def test_the_first_pass_by_agent() -> None:
    turns = [turn("a"), turn("b"), turn("a")]
    look = FirstLook(version=0)
    look.add(batch_of(turns[:2]), torch.tensor([-1.5, -2.0, -1.0, -1.0]))
    look.add(batch_of(turns[2:]), torch.tensor([-1.0, -2.25]))
    updates = {"p": {("loss", "a"): Sum(1.0), **look.table()}}
    found = mismatch_metrics([first_passes(updates)], ["p"])
    a, b = k3(-1.0, -1.5) + k3(-2.0, -2.25), k3(-2.0, -1.0)
    assert found == pytest.approx(
        {"mismatch_kl": (a + b) / 6, "mismatch_kl/a": a / 4, "mismatch_kl/b": b / 2}
    )


def test_policies_and_agents_have_names_of_their_own() -> None:
    first = {("p", "a"): Mean(1.0, 2.0), ("p", "q"): Mean(2.0, 2.0)}
    tallies = [first, {("q", "b"): Mean(9.0, 3.0)}]
    assert mismatch_metrics(tallies, ["p", "q"]) == {
        "mismatch_kl": 12 / 7,
        "mismatch_kl/p": 3 / 4,
        "mismatch_kl/q": 3.0,
        "mismatch_kl/a": 0.5,
        "mismatch_kl/b": 3.0,
    }
    assert mismatch_metrics([{("p", "a"): Mean(1.0, 2.0)}], ["p"]) == {"mismatch_kl": 0.5}
    assert mismatch_metrics([{}], ["p"]) == {}


def test_columns_before_the_update_are_taken_where_there_are_any() -> None:
    known = turn(old_logprobs=[-1.5, -2.0])
    assert tally([known], {"p": 0}) == {("p", "a"): Mean(pytest.approx(k3(-1.0, -1.5)), 2.0)}
    assert tally([known], {"other": 0}) == {} == tally([turn()], {"p": 0})
    look = FirstLook(0)
    look.add(batch_of([known]), torch.tensor([-1.0, -2.0]))
    assert look.table() == {}, "it was counted already"


@pytest.mark.parametrize(
    "changes",
    [
        {"logprobs": None},
        {"version": 1},
        {"sampling": SamplingParams(temperature=0.0)},
        {"sampling": SamplingParams(top_p=0.9)},
        {"sampling": SamplingParams(top_k=5)},
        {"sampling": SamplingParams(min_p=0.1)},
    ],
)
def test_what_cannot_be_compared_is_not_counted(changes: Any) -> None:
    """Text no engine sampled, other weights, greedy tokens, cut distributions."""
    look = FirstLook(0)
    look.add(batch_of([turn(**changes)]), torch.tensor([-9.0, -9.0]))
    assert look.table() == {}
    assert tally([turn(old_logprobs=[-9.0, -9.0], **changes)], {"p": 0}) == {}


def test_a_log_prob_that_is_no_number_counts_as_wrong() -> None:
    look = FirstLook(0)
    look.add(batch_of([turn()]), torch.tensor([math.nan, -2.0]))
    assert look.table()[MISMATCH, "a"].total == 1e9
    far = mismatch.divergence(torch.tensor([-800.0, 0.0, -25.0]), torch.tensor([0.0, -900.0, 0.0]))
    assert far.tolist() == [1e9, 899.0, 1e9] and far.dtype is torch.float64
    never = mismatch.divergence(torch.tensor([-math.inf, -1.0]), torch.tensor([-1.0, -math.inf]))
    assert never.tolist() == [1e9, 1e9]


def test_what_can_be_compared_is_told_turn_by_turn() -> None:
    single = turn(logprobs=[-1.0], completion_ids=[3])
    empty = turn(logprobs=[], completion_ids=[])
    assert mismatch.comparable(turn(), 0) and mismatch.comparable(single, 0)
    assert not mismatch.comparable(empty, 0) and not mismatch.comparable(turn(), 1)
    look = FirstLook(0)
    look.add(batch_of([turn(logprobs=None), turn()]), torch.tensor([-9.0, -9.0, -1.0, -3.0]))
    wanted = Mean(pytest.approx(k3(-2.0, -3.0)), 2.0)
    assert look.table() == {(MISMATCH, "a"): wanted} and not look.done
    columns: Any = {"old_logprobs": [-1.5, -2.0]}
    turns = [turn(**columns), turn(trained=False, **columns), turn(**columns), turn("b", **columns)]
    one = k3(-1.0, -1.5)
    two = {"a": Mean(pytest.approx(2 * one), 4.0), "b": Mean(pytest.approx(one), 2.0)}
    assert tally(turns, {"p": 0, "q": 0}) == {("p", agent): mean for agent, mean in two.items()}


def test_the_loss_of_an_own_loop_is_compared_where_it_was_sampled(tokenizer: Any) -> None:
    """With the weights as they are, without dropout; text that nobody sampled is left out."""
    model = family("llama")
    policy = Policy("p", model, tokenizer)
    version = mismatch.content_version(policy)
    policy.add_value_head()
    assert mismatch.content_version(policy) == version, "engines do not sample with heads"
    chosen = batch_of([turn(version=version), turn(logprobs=None), turn(version=version - 1)])
    said = torch.tensor([-1.5, -2.0, -9.0, -9.0, -9.0, -9.0])
    expected = {"mismatch_kl": pytest.approx(k3(-1.0, -1.5) / 2)}
    for training, dropout, found in [
        (False, 0.0, expected),
        (True, 0.0, expected),
        (False, 0.5, expected),
        (True, 0.5, {}),
    ]:
        model.train(training)
        model.config.attention_dropout = dropout
        assert mismatch.loss_mismatch(policy, chosen, Outputs(said, said)) == found
    known = batch_of([turn(version=version, old_logprobs=[-1.5, -2.0])])
    assert mismatch.loss_mismatch(policy, known, Outputs(said[:2], said[:2])) == expected
    untold = batch_of([turn(logprobs=None, version=version)])
    assert mismatch.loss_mismatch(policy, untold, Outputs(said[:2], said[:2])) == {}


@pytest.mark.parametrize(
    ("layers", "configured", "found"),
    [
        ([torch.nn.Linear(1, 1)], None, False),
        ([torch.nn.Linear(1, 1), torch.nn.Dropout(0.0)], 0.0, False),
        ([torch.nn.Linear(1, 1), torch.nn.Dropout(0.1)], 0.0, True),
        ([torch.nn.Linear(1, 1), torch.nn.Dropout(0.0)], 0.1, True),
        ([torch.nn.Linear(1, 1)], 1.0, True),
    ],
)
def test_whether_a_forward_draws(layers: list[Any], configured: float | None, found: bool) -> None:
    model: Any = torch.nn.Sequential(*layers)
    policy: Any = SimpleNamespace(model=model, lean_pass=None, dropout=False)
    own = any(getattr(each, "p", 0.0) > 0 for each in layers)
    assert random_forward(policy, dropout=True) is own
    model.config = SimpleNamespace(attention_dropout=configured)
    assert random_forward(policy, dropout=True) is own_dropout(policy) is found
    assert random_forward(policy) is False  # it acts if it is asked to
    model.append(torch.nn.ModuleDict({"lora_dropout": torch.nn.Dropout(0.1)}))
    assert random_forward(policy) is True and own_dropout(policy) is found


def test_the_age_of_weights_has_a_divergence_of_its_own() -> None:
    old = turn(old_logprobs=[-1.5, -2.0], lag=1, version=3)
    assert lag_kl([old, turn(old_logprobs=[0.0, 0.0])]) == {"lag/kl": k3(-1.0, -1.5) / 2}
    assert lag_kl([turn()]) == {} == lag_kl([turn(lag=1)])
    other = turn(old_logprobs=[-1.0, -2.5], lag=2)
    left_out = [turn(old_logprobs=[0.0, 0.0], lag=1, trained=False), turn(lag=1, version=2)]
    expected = (k3(-1.0, -1.5) + k3(-2.0, -2.5)) / 4
    assert lag_kl([old, *left_out, other]) == {"lag/kl": pytest.approx(expected)}
    assert tally([old], {"p": 5}) == {}


def test_approx_kl_by_hand() -> None:
    """How far the policy moved from what sampled, a mean over tokens, in the same direction."""
    one, two = turn(advantages=1.0), turn(advantages=-1.0)
    batch = batch_of([one, two])
    outputs = Outputs(torch.tensor([-1.0, -2.5, -0.5, -4.0]), torch.zeros(4))
    loss: Loss = PolicyGradient().loss(batch, outputs)
    expected = (0.0 + k3(-2.0, -2.5) + k3(-1.0, -0.5) + k3(-2.0, -4.0)) / 4
    assert float(loss.metrics["approx_kl"]) == pytest.approx(expected, rel=1e-5)
    assert expected == pytest.approx((0 + 0.10653066 + 0.14872127 + 1.13533528) / 4)


def test_parts_of_a_batch_add_up_to_its_approx_kl() -> None:
    turns = [turn(advantages=1.0) for _ in range(3)]
    whole = batch_of(turns)
    said = torch.tensor([-1.0, -2.5, -0.5, -4.0, -1.25, -2.0])
    total = PolicyGradient().loss(whole, Outputs(said, torch.zeros(6))).metrics["approx_kl"]
    added = 0.0
    for here, part in whole.parts(2):
        outputs = Outputs(said[here], torch.zeros(len(part)))
        added += float(PolicyGradient().loss(part, outputs).metrics["approx_kl"])
    assert added == pytest.approx(float(total)) and added > 0.1


# -- in runs ---------------------------------------------------------------------------------------


class Pair(Environment):
    """Two agents speak at once, and each is paid for what a random model writes often."""

    agents = ("short", "long")
    max_turns = 1
    blocking = False

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        question = Observation([Message(f"number {(seed or 0) % 10}")])
        return StepResult(dict.fromkeys(self.agents, question))

    def step(self, actions: dict[str, Message]) -> StepResult:
        paid = {
            agent: Reward(sum(ord(letter) % 2 for letter in message.content) / 8)
            for agent, message in actions.items()
        }
        return StepResult({}, paid, done=True)


AXES: dict[str, list[Any]] = {
    "algorithm": ["grpo", "ppo", "magrpo", "reinforce", "rloo", "mappo", "happo", "vdn", "sac"],
    "engine": ["lean", "hf", "mrlm"],
    "binding": ["own", "shared", "lora"],
    "head": ["tied", "untied", "frozen rows"],
    "optimiser": ["fused", "foreach", "plain"],
    "temperature": [0.2, 1.0],
    "precision": ["fp32", "bf16"],
}


def sensible(case: dict[str, Any]) -> bool:
    """A base under adapters is not trained, so its head plays no part; a team's factors need
    policies of their own."""
    return not (case["algorithm"] == "happo" and case["binding"] == "shared")


def pairwise(seed: int = 0) -> list[dict[str, Any]]:
    """Cases in which every two values of every two axes meet at least once."""
    rng, names = random.Random(seed), list(AXES)
    left = {
        ((one, a), (two, b))
        for one, two in itertools.combinations(names, 2)
        for a in AXES[one]
        for b in AXES[two]
        if sensible({"algorithm": "", "binding": ""} | {one: a, two: b})
    }
    cases: list[dict[str, Any]] = []
    while left:
        best, gain = {}, -1
        fixed = dict(min(left, key=str))
        for _ in range(60):
            case = {name: rng.choice(AXES[name]) for name in names} | fixed
            pairs = {
                ((one, case[one]), (two, case[two]))
                for one, two in itertools.combinations(names, 2)
            }
            if sensible(case) and len(pairs & left) > gain:
                best, gain = case, len(pairs & left)
        left -= {((a, best[a]), (b, best[b])) for a, b in itertools.combinations(names, 2)}
        cases.append(best)
    return cases


def name_of(case: dict[str, Any]) -> str:
    return "-".join(str(value).replace(" ", "_") for value in case.values())


CASES = pairwise()
QUICK = 2


def bindings(case: dict[str, Any]) -> dict[str, Any]:
    """The policies of two agents."""
    if case["binding"] == "shared":
        both = {"policy": "both"}
        return {"policies": {"both": {}}, "agents": {"short": both, "long": both}}
    own = {"lora": {"r": 4}} if case["binding"] == "lora" else {}
    return {"policies": {"short": own, "long": dict(own)}}


def config_of(case: dict[str, Any], folder: Path, model: str, steps: int) -> dict[str, Any]:
    return {
        "experiment_name": "matrix",
        "output_dir": str(folder / "run"),
        "model": {"model_name_or_path": model},
        "environments": [{"env_type": "test_mismatch:Pair"}],
        **bindings(case),
        "training": {
            "algorithm": case["algorithm"],
            "num_iterations": steps,
            "batch_size": 2,
            "learning_rate": 1.0e-3,
            "report_to": "none",
            "precision": case["precision"],
        },
        "generation": {"max_new_tokens": 8, "temperature": case["temperature"]},
        "engine": {"name": case["engine"]},
    }


def prepared(run: Any, case: dict[str, Any]) -> None:
    """The optimiser and the frozen rows of a case: gradients of half of the vocabulary are 0."""
    for learner in run.learners:
        settings: dict[str, Any] = {"fused": case["optimiser"] == "fused"}
        settings["foreach"] = case["optimiser"] == "foreach"
        stepper = learner.stepper
        kind = type(stepper.optimizer)
        groups = [
            {key: group[key] for key in ("params", "lr", "peak_lr")}
            for group in stepper.optimizer.param_groups
        ]
        stepper.optimizer = kind(groups, weight_decay=0.0, **settings)
        if case["head"] == "frozen rows" and case["binding"] != "lora":
            weight = learner.weights_of.model.get_output_embeddings().weight
            weight.register_hook(lambda grad: torch.cat([grad[:100] * 0, grad[100:]]))


@contextmanager
def served(data: dict[str, Any]) -> Iterator[None]:
    """Where the engine is a server: one with the policies of a config."""
    if data["engine"]["name"] != "mrlm":
        yield
        return
    house = house_of_config(parse_config(data | {"engine": {"name": "lean"}}, (), "test"))
    desk = PolicyHub(house.served(), takes_weights=True)
    doors = Doors(desk)
    data["engine"] = data["engine"] | {"base_url": doors.address}
    try:
        yield
    finally:
        doors.close()
        desk.close()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name_of(case), marks=[pytest.mark.slow] * (place >= QUICK))
        for place, case in enumerate(CASES)
    ],
)
def test_the_sampler_is_the_trainer(case: dict[str, Any], tmp_path: Path, tiny_path: str) -> None:
    model = untied(tiny_path, tmp_path / "model") if case["head"] == "untied" else tiny_path
    steps = 30 if CASES.index(case) >= QUICK else 4
    limit = {"fp32": 1e-8, "bf16": 0.05}[case["precision"]]
    data = config_of(case, tmp_path, model, steps)
    with served(data):
        run = build(parse_config(data, (), "test"))
        prepared(run, case)
        run_async(train(run))
    run.log.close()
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").open()]
    rows = [row for row in rows if row["step"] > 0]
    assert len(rows) == steps
    names = ("mismatch_kl", "mismatch_kl/short", "mismatch_kl/long")
    found = [[row[name] for name in names if name in row] for row in rows]
    assert found[0] and 0 <= max(value for values in found for value in values) < limit
    for row, values in zip(rows, found, strict=True):  # steps that train nothing measure nothing
        assert values or all(row[f"advantage/{name}/zero"] == 1.0 for name in ("short", "long"))


PLAIN = {
    "head": "tied", "algorithm": "grpo", "engine": "lean", "temperature": 1.0, "precision": "fp32",
    "optimiser": "fused",
}  # fmt: skip


def test_a_run_that_samples_with_other_weights_ends(tmp_path: Path, tiny_path: str) -> None:
    """A callback writes weights behind the engine's back: the step says so, and how much."""

    class Write(Callback):
        def on_step_begin(self, run: Run) -> None:
            if run.step == 1:
                with torch.no_grad():
                    for weight in run.learners[0].parameters():
                        weight.mul_(1.1)

    case = PLAIN | {"binding": "own"}
    run = build(parse_config(config_of(case, tmp_path, tiny_path, 3), (), "test"))
    run.callbacks = (Write(),)
    with pytest.raises(CheckError, match=r"check mismatch_kl: .* policy 'short' in step 2"):
        run_async(train(run))
    run.log.close()
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").open()]
    assert rows[0]["mismatch_kl/short"] < 1e-8 < 1e-4 < rows[1]["mismatch_kl/short"]
    assert rows[1]["mismatch_kl/long"] < 1e-8


def test_a_limit_of_ones_own_and_one_that_changes_nothing(tmp_path: Path, tiny_path: str) -> None:
    case = PLAIN | {"binding": "own"}
    data = config_of(case, tmp_path, tiny_path, 3)
    data["training"]["max_mismatch_kl"] = 1e-30
    run = build(parse_config(data, (), "test"))
    with pytest.raises(CheckError, match="rounding explains 1e-30"):
        run_async(train(run))
    run.log.close()
    for section, key in (("training", "max_mismatch_kl"), ("engine", "tolerance")):
        data = config_of(case, tmp_path, tiny_path, 3)
        data[section][key] = 0.1
        data["training"]["checks"] = "off"
        with pytest.raises(ConfigError, match=rf"{section}.{key}: changes nothing because with"):
            build(parse_config(data, (), "test"))


@pytest.mark.slow
def test_dropout_is_looked_at_without(tmp_path: Path, tiny_path: str) -> None:
    """What an adapter drops in training mode is no mismatch."""
    case = PLAIN | {"binding": "lora"}
    data = config_of(case, tmp_path, tiny_path, 4)
    data["policies"]["short"]["lora"] |= {"dropout": 0.5}
    data["training"]["learning_rate"] = 1e-2
    run = build(parse_config(data, (), "test"))
    run_async(train(run))
    run.log.close()
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").open()][1:]
    assert all(0 <= row["mismatch_kl/short"] < 1e-8 for row in rows)
