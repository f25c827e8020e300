"""Every adapter of PEFT, through every door, moves as in PEFT's own step, and is copied whole."""

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch

from adapters import (
    KINDS,
    PAIRS,
    ROWS,
    base,
    config,
    descended,
    loaded,
    loss_of,
    peft_model,
    saved,
    tokenizer,
    trainable,
)
from mrlm import ExperimentConfig, Learner, default_model
from mrlm.algorithms.dpo import DPOTrainer
from mrlm.algorithms.magrpo import MAGRPOTrainer
from mrlm.algorithms.sft import SFT, SFTTrainer
from mrlm.core.errors import ConfigError, ModelError
from mrlm.core.types import Message, Role, Rollout
from mrlm.experiment import run_experiment
from mrlm.learn.fast import forward
from mrlm.learn.policy.copies import beside, opponent_copy
from mrlm.learn.policy.policy import Policy, as_policy
from mrlm.learn.policy.reference import renew, standing

TITLE = "Adapters: what is trained"
JUDGE = "PEFT's own forward and backward"
DIFFERENCES = (
    "one adapter is trained at a time, of the type LORA: several active ones, merged ones and "
    "other types are refused by name, because a policy is one adapter that is copied and saved",
    "settings of a LoraConfig that change the base in a way that loading does not repeat (loftq, "
    "corda, lora_ga, pissa_niter) and biases of the base are refused by name, because the saved "
    "adapter would not be what was trained",
    "an adapter that PEFT loaded for inference is trained if it is given to a trainer",
)

RATE, STEPS = 0.1, 2
PLAIN: dict[str, Any] = {
    "optimizer": "sgd",
    "learning_rate": RATE,
    "num_iterations": STEPS,
    "batch_size": len(ROWS),
    "max_grad_norm": None,
    "report_to": "none",
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "data.shuffle": False,
}
FEW = ("lora", "tokens", "pissa")


def kinds(every: bool = False) -> list[Any]:
    marks = {name: [] if every or name in FEW else [pytest.mark.slow] for name in KINDS}
    return [pytest.param(name, marks=marks[name]) for name in KINDS]


def sft(model: Any, folder: Path, **words: Any) -> SFTTrainer:
    return SFTTrainer(
        model, ROWS, tokenizer=tokenizer(), **PLAIN | {"output_dir": str(folder)} | words
    )


def policy_of(trainer: Any) -> Policy:
    return trainer.run.learners[0].weights_of


def same(policy: Policy, judge: dict[str, Any], before: dict[str, Any]) -> None:
    """Whether what was trained is what PEFT trained, and something was."""
    own = trainable(policy.model, policy.adapter or "")
    assert own.keys() == judge.keys()
    moved = max(float((judge[key] - before[key]).abs().max()) for key in own)
    gap = max(float((own[key] - judge[key]).abs().max()) for key in own)
    assert gap <= 1e-5 * moved / RATE and moved > 1e-3


def start(model: Any, adapter: str = "default") -> dict[str, Any]:
    return {key: value.detach().clone() for key, value in trainable(model, adapter).items()}


@pytest.mark.parametrize("kind", kinds(every=True))
def test_a_live_model_moves_as_in_a_step_of_peft(kind: str, tmp_path: Path) -> None:
    model = peft_model(kind)
    twin, before = copy.deepcopy(model), start(model)
    trainer = sft(model, tmp_path)
    trainer.train()
    assert policy_of(trainer).model is model
    same(policy_of(trainer), descended(twin, STEPS, RATE), before)


def live_and_config(kind: str, folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    model = peft_model(kind, trained=True)
    return model, copy.deepcopy(model), {"peft_config": config(kind)}


def of_folder(kind: str, folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    where = saved(peft_model(kind, trained=True), folder / "adapter")
    return where, loaded(where), {}


def folder_and_config(kind: str, folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    return *of_folder(kind, folder)[:2], {"peft_config": config(kind)}


@pytest.mark.parametrize("door", [live_and_config, of_folder, folder_and_config])
@pytest.mark.parametrize("kind", kinds())
def test_an_adapter_that_comes_in_trained_is_trained_further(
    kind: str, door: Callable[..., Any], tmp_path: Path
) -> None:
    model, twin, words = door(kind, tmp_path)
    before = start(twin)
    trainer = sft(model, tmp_path / "run", **words)
    trainer.train()
    same(policy_of(trainer), descended(twin, STEPS, RATE), before)


@pytest.mark.parametrize("kind", kinds())
def test_a_config_of_peft_is_the_adapter_that_peft_makes(kind: str, tmp_path: Path) -> None:
    trainer = sft(base(), tmp_path, peft_config=config(kind))
    policy = policy_of(trainer)
    twin, expected = copy.deepcopy(policy.model), peft_model(kind)
    made = vars(policy.model.peft_config["policy"])
    assert {k: v for k, v in made.items() if k != "base_model_name_or_path"} == {
        k: v
        for k, v in vars(expected.peft_config["default"]).items()
        if k != "base_model_name_or_path"
    }
    assert trainable(twin, "policy").keys() == trainable(expected).keys()
    before = start(twin, "policy")
    trainer.train()
    same(policy, descended(twin, STEPS, RATE, "policy"), before)


@pytest.mark.parametrize("kind", kinds())
def test_gradients_of_an_own_loop_are_those_of_peft(kind: str) -> None:
    model = peft_model(kind, trained=True)
    twin = copy.deepcopy(model).eval()
    rollouts = []
    for row in ROWS:
        question, answer = (each["content"] for each in row["messages"])
        messages = [Message(question, Role.USER), Message(answer, Role.MODEL)]
        rollouts.append(Rollout(messages=messages))
    learner = Learner(model.eval(), tokenizer(), SFT())
    loss = learner.calculate_loss(rollouts, [1.0] * len(ROWS))
    loss.backward()
    theirs = loss_of(twin)
    theirs.backward()
    assert float(loss) == pytest.approx(float(theirs), rel=1e-5)
    for key, value in trainable(twin).items():
        own = trainable(model)[key].grad
        expected = torch.zeros_like(value) if value.grad is None else value.grad
        own = torch.zeros_like(value) if own is None else own
        assert float((own - expected).abs().max()) <= 1e-5 * (1 + float(expected.abs().max()))
    assert {id(x) for x in learner.parameters()} == {id(x) for x in trainable(model).values()}


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("kind", kinds())
def test_the_first_loss_of_dpo_is_ln_2(kind: str, trained: bool, tmp_path: Path) -> None:
    words = PLAIN | {"num_iterations": 1, "batch_size": 2, "output_dir": str(tmp_path)}
    trainer = DPOTrainer(peft_model(kind, trained), PAIRS, tokenizer=tokenizer(), **words)
    assert trainer.train().history[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.parametrize("kind", kinds(every=True))
def test_every_copy_computes_what_peft_computes(kind: str) -> None:
    """A snapshot, a critic and a reference do not move with the adapter; a renewed reference
    does."""
    model = peft_model(kind, trained=True)
    policy = as_policy("p", model, tokenizer())
    twin = copy.deepcopy(model).eval()
    ids = torch.tensor([[40, 41, 42, 43, 44, 50]])
    expected = twin(input_ids=ids).logits
    policy.keep_reference()
    contexts = [opponent_copy(policy, "rival").active, beside(policy).active]
    contexts.append(lambda: standing(policy))
    for key, value in trainable(twin).items():
        value.data.add_(0.01)
        trainable(model)[key].data.copy_(value)
    for context in contexts:
        with context() as weights:
            assert torch.equal(weights.eval()(input_ids=ids).logits, expected)
    renew(policy)
    moved = twin(input_ids=ids).logits
    with standing(policy) as weights:
        assert torch.equal(weights.eval()(input_ids=ids).logits, moved)
    assert not torch.equal(moved, expected)


def test_a_fast_path_that_leaves_out_a_new_adapter_is_found_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A new adapter adds nothing, so the check adds noise to it, and takes it away."""
    monkeypatch.setattr(forward, "loras_of", lambda module, adapters: [None] * len(adapters))
    model = peft_model("lora")
    before, twin = start(model), copy.deepcopy(model)
    trainer = sft(model, tmp_path)
    assert not policy_of(trainer).packed
    assert all(torch.equal(before[key], value) for key, value in trainable(model).items())
    trainer.train()
    same(policy_of(trainer), descended(twin, STEPS, RATE), before)


def experiment(folder: Path, *stages: dict[str, Any], **more: Any) -> ExperimentConfig:
    rows = folder / "rows.jsonl"
    rows.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return ExperimentConfig(
        experiment_name="e",
        output_dir=str(folder / "run"),
        data={"dataset": str(rows)},
        training={"num_iterations": 2, "batch_size": 2, "learning_rate": 1e-2, "seed": 1},
        stages=list(stages),
        **more,
    )


def test_stages_continue_one_adapter(tmp_path: Path) -> None:
    """SFT then SFT with LoRA: `final/` is what PEFT computes from both, and the second stage began
    where the first one ended."""
    stage = {"training": {"algorithm": "sft"}}
    lora = {"lora": {"r": 4, "target_modules": ["q_proj", "v_proj"]}}
    done = run_experiment(
        experiment(tmp_path, {"name": "a", **stage}, {"name": "b", **stage}, model=lora)
    )
    first, second = (loaded(tmp_path / "run" / name / "final") for name in ("1-a", "2-b"))
    losses = [float(loss_of(model)) for model in (base(), first, second)]
    assert losses[0] > losses[1] > losses[2]
    assert done.history[2]["loss"] == pytest.approx(losses[1], abs=0.2)


def test_a_full_stage_after_an_adapter(tmp_path: Path) -> None:
    """`lora: false` merges the adapter and trains all weights; without it the adapter goes on."""
    stage = {"training": {"algorithm": "sft"}}
    one = {"name": "a", **stage, "model": {"lora": {"r": 4}}}
    run_experiment(
        experiment(
            tmp_path,
            one,
            {
                "name": "b",
                "training": {"algorithm": "sft", "learning_rate": 1e-3},
                "model": {"lora": False},
            },
        )
    )
    first = loaded(tmp_path / "run" / "1-a" / "final")
    whole = type(base()).from_pretrained(tmp_path / "run" / "final", dtype=torch.float32)
    assert float(loss_of(first)) > float(loss_of(whole))
    merged = first.merge_and_unload()
    gaps = [
        float((value - dict(merged.named_parameters())[key]).abs().max())
        for key, value in whole.named_parameters()
    ]
    assert 0 < max(gaps) < 0.1 and sum(gap > 0 for gap in gaps) > len(gaps) / 2


def test_two_agents_continue_the_adapter_of_a_stage(tmp_path: Path) -> None:
    play = {
        "training": {"algorithm": "magrpo"},
        "data": {"dataset": None},
        "environments": [{"env_type": "relay"}],
        "generation": {"max_new_tokens": 2},
        "policies": {"first": {"lora": {}}, "second": {"lora": {}}},
        "agents": {"first": {"policy": "first"}, "second": {"policy": "second"}},
    }
    lora = {"lora": {"r": 4}}
    stages = [{"name": "a", "training": {"algorithm": "sft"}}, {"name": "b", **play}]
    run_experiment(experiment(tmp_path, *stages, model=lora))
    first = loaded(tmp_path / "run" / "1-a" / "final")
    for name in ("first", "second"):  # equal rewards trained nothing, and forgot nothing
        own = loaded(tmp_path / "run" / "final" / name)
        assert float(loss_of(own)) == pytest.approx(float(loss_of(first)), abs=0.05)
        assert float(loss_of(own)) < float(loss_of(base())) - 0.1


def test_live_adapters_of_two_agents(tmp_path: Path) -> None:
    """One each, or one for both: the second agent then gets a copy on the same base."""

    def paid(one: list[str], two: list[str]) -> list[float]:
        return [float(len(set(a + b))) for a, b in zip(one, two, strict=True)]

    rows = [{"prompt": f"{number}"} for number in range(4)]
    words = {"num_iterations": 2, "batch_size": 2, "num_generations": 4, "max_new_tokens": 6}
    words |= {"learning_rate": 1e-2, "report_to": "none", "reward_func": paid}
    models = {"x": peft_model("lora"), "y": peft_model("dora")}
    both = MAGRPOTrainer(
        agents=models,
        train_dataset=rows,
        tokenizer=tokenizer(),
        output_dir=str(tmp_path / "a"),
        **words,
    )
    before = {name: start(model) for name, model in models.items()}
    both.train()
    for name, model in models.items():
        assert any(not torch.equal(before[name][k], v) for k, v in trainable(model).items())
    one = peft_model("noise")
    shared = MAGRPOTrainer(
        one, rows, num_agents=2, tokenizer=tokenizer(), output_dir=str(tmp_path / "b"), **words
    )
    adapters = [learner.weights_of.adapter for learner in shared.run.learners]
    assert all(learner.weights_of.model is one for learner in shared.run.learners)
    assert adapters == ["default", "agent_1"]
    assert all(
        torch.equal(value, trainable(one)[key])
        for key, value in trainable(one, "agent_1").items()
        if key in trainable(one)
    )


def _merged(model: Any) -> Any:
    model.merge_adapter()
    return model


def _disabled(model: Any) -> Any:
    model.base_model.disable_adapter_layers()
    return model


def _two_active(model: Any) -> Any:
    model.add_adapter("other", config("lora"))
    model.base_model.set_adapter(["default", "other"])
    return model


def _head_beside_it(model: Any) -> Any:
    model.get_base_model().model.norm.weight.requires_grad_(True)
    return model


def _ia3(model: Any) -> Any:
    settings = {"target_modules": ["k_proj"], "feedforward_modules": []}
    return peft.get_peft_model(base(), peft.IA3Config(task_type="CAUSAL_LM", **settings))


def _prompts(_: Any) -> Any:
    return peft.get_peft_model(
        base(), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    )


REFUSED: list[tuple[Callable[[Any], Any], str, Callable[[Any], Any]]] = [
    (_merged, r"model\.unmerge_adapter\(\)", lambda model: model.unmerge_adapter() or model),
    (
        _disabled,
        r"model\.base_model\.enable_adapter_layers\(\)",
        lambda model: model.base_model.enable_adapter_layers() or model,
    ),
    (_two_active, r"model\.set_adapter\(NAME\)", lambda m: m.set_adapter("default") or m),
    (
        _head_beside_it,
        r"model\.norm\.weight of the PEFT model is trainable.*freeze it",
        lambda m: m.get_base_model().model.norm.weight.requires_grad_(False) is None or m,
    ),
    (
        _ia3,
        r"IA3; LORA is trained.*model\.merge_and_unload\(\)\.requires_grad_\(True\)",
        lambda model: model.merge_and_unload().requires_grad_(True),
    ),
    (
        _prompts,
        r"PROMPT_TUNING; LORA is trained.*model\.get_base_model\(\)\.requires_grad_\(True\)",
        lambda model: model.get_base_model().requires_grad_(True),
    ),
    (
        lambda _: peft.get_peft_model(base(), config("lora", bias="all")),
        "bias='all' of its LoraConfig .* leave it at 'none'",
        lambda _: peft.get_peft_model(base(), config("lora", bias="none")),
    ),
    (
        lambda _: peft.get_peft_model(base(), config("lora", init_lora_weights="pissa_niter_2")),
        "init_lora_weights='pissa_niter_2' changes the base, and not always .* 'pissa'",
        lambda _: peft_model("pissa"),
    ),
]


@pytest.mark.parametrize(("made", "text", "fix"), REFUSED)
def test_what_is_not_trained_is_refused_and_the_advice_trains(
    made: Callable[[Any], Any], text: str, fix: Callable[[Any], Any], tmp_path: Path
) -> None:
    model = made(peft_model("lora"))
    with pytest.raises(ModelError, match=text):
        sft(model, tmp_path / "no").train()
    with pytest.raises(ModelError, match=text):
        Learner(model, tokenizer(), SFT())
    result = sft(fix(model), tmp_path / "yes").train()
    assert result.history[0]["grad_norm"] > 0


def test_another_shape_than_that_of_the_adapter_is_refused(tmp_path: Path) -> None:
    where = saved(peft_model("lora", trained=True), tmp_path / "adapter")
    with pytest.raises(ConfigError, match=r"has r=4, and lora\.r=8 is set.*remove lora\.r"):
        sft(where, tmp_path / "no", lora_r=8).train()
    trainer = sft(where, tmp_path / "yes", lora_r=4)  # its alpha is 6, and was not asked for
    resolved = ExperimentConfig(**trainer.config.resolved())
    again = SFTTrainer(config=resolved, train_dataset=ROWS)
    assert policy_of(again).model.peft_config["policy"].lora_alpha == 6


def test_an_adapter_loaded_for_inference_is_trained(tmp_path: Path) -> None:
    where = saved(peft_model("lora", trained=True), tmp_path / "adapter")
    model = peft.PeftModel.from_pretrained(base(), where)
    assert not any(value.requires_grad for value in model.parameters())
    twin, before = loaded(where), start(loaded(where))
    trainer = sft(model, tmp_path / "run")
    trainer.train()
    same(policy_of(trainer), descended(twin, STEPS, RATE), before)


def test_an_adapter_that_changes_its_base_has_a_base_of_its_own(tmp_path: Path) -> None:
    """PiSSA takes its beginning out of the base: two agents do not share one."""
    words = {"reward_func": lambda x, y: [0.0] * len(x), "max_new_tokens": 2, "report_to": "none"}
    trainer = MAGRPOTrainer(
        default_model(),
        [{"prompt": "a"}] * 2,
        num_agents=2,
        share_policy="lora",
        peft_config=config("pissa"),
        output_dir=str(tmp_path),
        num_iterations=1,
        batch_size=1,
        **words,
    )
    one, two = (learner.weights_of for learner in trainer.run.learners)
    assert one.model is not two.model
    assert one.model.peft_config[one.adapter].r == 4
