"""Distillation: exact divergences have the gradients of autograd, sampled ones those of all tokens
together, a policy that is its own teacher has none, and all entry points give the same numbers."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from distilled import TURNS, group, moved, stated
from mrlm import DistillationTrainer, Learner, load_config, run_experiment
from mrlm.algorithms.distill import Distill
from mrlm.core.environment import SimulatedEnvironment
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Observation, Reward, Turn
from mrlm.learn.data.batch import Outputs, merge, pack
from mrlm.learn.fast import lm_head
from mrlm.learn.policy.lora import adapter_parameters, add_adapter, switch_adapter
from mrlm.learn.policy.policy import Policy

pytestmark = pytest.mark.system

EXACT = ["reverse", "forward", "jsd"]


def plain_logits(model: Any) -> Any:
    """Logits that predict the completions, by the model's own forward, one turn at a time."""
    rows = [
        model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        for prompt, answer in TURNS
    ]
    return torch.cat(rows)


@pytest.mark.parametrize("lean", [True, False], ids=["fast path", "own forward"])
@pytest.mark.parametrize("kind", EXACT)
def test_gradients_are_those_of_autograd(
    kind: Any, lean: bool, model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the vocabulary of two tokens is a chunk, and a step of a trainer is taken."""
    monkeypatch.setattr(lm_head, "rows_at_once", lambda *_: 2)
    student, algorithm = moved(model).double(), Distill(divergence=kind, beta=0.3)
    teacher = moved(model, seed=4).double().eval().requires_grad_(False)
    distance = stated(kind, 0.3, plain_logits(student), plain_logits(teacher)).mean()
    expected = torch.autograd.grad(distance, list(student.parameters()))
    policy = Policy("policy", student, tokenizer, reference=teacher, lean=lean)
    assert policy.packed is lean
    learner = Learner(policy, algorithm=algorithm)
    loss = learner.calculate_loss([group()])
    assert float(loss.detach()) == pytest.approx(float(distance.detach()), abs=1e-6)
    loss.backward()
    for weight, gradient in zip(student.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-6, atol=1e-6)
    student.zero_grad()
    samples = [s for n, x in enumerate((TURNS[:2], TURNS[2:])) for s in credited(x, n)]
    through = learner._backward(samples, learner.packed(samples).totals, algorithm, algorithm.loss)
    metrics = finished(through)
    assert metrics["divergence"] == pytest.approx(float(distance.detach()), abs=1e-6)
    for weight, gradient in zip(student.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-6, atol=1e-6)


def credited(turns: Any, number: int) -> Any:
    made = [Turn("a", "policy", p, c, [-1.0] * len(c), advantages=0.0) for p, c in turns]
    return merge(made, unit=number, rollout=number)


def finished(updating: Any) -> dict[str, float]:
    """The metrics of a gradient, whose micro-batches are computed as in a joint update."""
    from mrlm.learn.joint_update import accumulate

    answer = None
    while True:
        try:
            work = updating.send(answer)
        except StopIteration as end:
            return end.value
        (answer,) = accumulate([work])


@pytest.mark.parametrize("kind", EXACT)
def test_its_own_teacher_gives_exactly_nothing(kind: Any, model: Any, tokenizer: Any) -> None:
    student = copy.deepcopy(model)
    learner = Learner(student, tokenizer, Distill(divergence=kind))
    loss = learner.calculate_loss([group()])
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert all(not bool(p.grad.any()) for p in student.parameters() if p.grad is not None)


def test_the_sampled_form_is_unbiased() -> None:
    """The mean over all tokens, weighted with their probability, is the gradient of the reverse
    divergence: by enumeration of a vocabulary of seven."""
    torch.manual_seed(0)
    p, q = torch.randn(7, dtype=torch.float64, requires_grad=True), torch.randn(7).double()
    exact = stated("reverse", 0.5, p[None], q[None]).sum()
    (expected,) = torch.autograd.grad(exact, p)
    logprobs = p.log_softmax(-1)
    turns = [
        Turn("a", "p", [1], [token], [logprobs[token].item()], advantages=0.0) for token in range(7)
    ]
    for turn, number in zip(turns, q.log_softmax(-1), strict=True):
        turn.ref_logprobs = float(number)
    batch = pack([sample for n, turn in enumerate(turns) for sample in merge([turn], n, n)])
    leaf = logprobs.detach().clone().requires_grad_()
    loss = Distill(divergence="sampled").loss(batch, Outputs(leaf, leaf.detach()))
    (slope,) = torch.autograd.grad(loss.total, leaf)
    (mean,) = torch.autograd.grad(logprobs, p, grad_outputs=7 * slope * logprobs.detach().exp())
    torch.testing.assert_close(mean, expected, rtol=1e-6, atol=1e-6)
    assert exact.item() > 0.1


def test_an_adapter_of_the_same_base_is_no_second_model(
    model: Any, tokenizer: Any, tiny_path: str, tmp_path: Path
) -> None:
    """Its folder is loaded as another adapter; loss and gradient are those of the merged model."""
    lora = {"r": 4, "target_modules": ["q_proj", "v_proj"]}
    trained = add_adapter(copy.deepcopy(model), "teacher", lora)
    torch.manual_seed(1)
    for weight in adapter_parameters(trained, "teacher").values():
        weight.data += 0.1 * torch.randn_like(weight)
    Policy("teacher", trained, tokenizer, adapter="teacher").save(tmp_path / "teacher")
    student = add_adapter(copy.deepcopy(model), "student", lora)
    student.get_base_model().name_or_path = tiny_path
    policy = Policy("policy", student, tokenizer, adapter="student")
    learner = Learner(policy, algorithm=Distill(teacher_model=str(tmp_path / "teacher")))
    assert policy.reference is None and policy.reference_adapter == "policy-teacher"
    loss = learner.calculate_loss([group()])
    merged = trained.merge_and_unload()
    expected = stated("reverse", 0.5, plain_logits(model), plain_logits(merged)).mean()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-4) != 0
    loss.backward()
    moving = {key: x for key, x in student.named_parameters() if x.grad is not None}
    assert moving and moving.keys() <= adapter_parameters(student, "student").keys()
    switch_adapter(student, "student")
    logits = plain_logits(student)
    distance = stated("reverse", 0.5, logits, plain_logits(merged).detach()).mean()
    slopes = torch.autograd.grad(distance, list(moving.values()))
    assert any(bool(slope.any()) for slope in slopes)
    for weight, slope in zip(moving.values(), slopes, strict=True):
        torch.testing.assert_close(weight.grad, slope, rtol=1e-4, atol=1e-6)


class Letters(SimulatedEnvironment):
    """Rewards low letters."""

    blocking = False
    reward_range = (0.0, 1.0)

    def reset(self, seed: int = 0) -> Observation:
        return Observation([Message(f"Write {seed % 7}")])

    def step(self, action: Message) -> tuple[Observation, Reward]:
        letters = action.content.encode()
        return Observation(done=True), Reward(sum(byte < 128 for byte in letters) / 64)


CONFIG = """
experiment_name: distil
environments: [{{env_type: "test_distillation:Letters"}}]
training: {{algorithm: distill, num_iterations: 4, batch_size: 2, learning_rate: 1.0e-3,
  report_to: none, save_steps: 2}}
distill: {{teacher_model: {teacher}, divergence: {kind}, group_size: 2, reward_weight: 0.5}}
generation: {{max_new_tokens: 6}}
output_dir: {folder}
"""


def weights_in(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "final" / "model.safetensors")


@pytest.mark.parametrize("kind", ["jsd", "sampled"])
def test_trainer_and_config_are_equal_and_resume_bit_by_bit(
    kind: str, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    moved(model).save_pretrained(tmp_path / "teacher")
    tokenizer.save_pretrained(tmp_path / "teacher")
    file = tmp_path / "c.yaml"
    file.write_text(CONFIG.format(teacher="teacher", kind=kind, folder=tmp_path / "whole"))
    result = run_experiment(load_config(file))
    assert result.history[-1]["divergence"] != 0
    cut = load_config(file, [f"output_dir={tmp_path / 'cut'}", "training.num_iterations=2"])
    run_experiment(cut)
    run_experiment(load_config(file, [f"output_dir={tmp_path / 'cut'}"]), resume=tmp_path / "cut")
    DistillationTrainer(
        environment=Letters,
        teacher_model=str(tmp_path / "teacher"),
        divergence=kind,
        group_size=2,
        reward_weight=0.5,
        batch_size=2,
        learning_rate=1e-3,
        max_new_tokens=6,
        output_dir=str(tmp_path / "trainer"),
        report_to="none",
    ).train(num_iterations=4)
    whole = weights_in(tmp_path / "whole")
    assert any(not torch.equal(whole[key], value) for key, value in model.state_dict().items())
    for name in ("cut", "trainer"):
        other = weights_in(tmp_path / name)
        assert all(torch.equal(value, other[key]) for key, value in whole.items()), name


def test_refusals_before_a_model_is_loaded(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = copy.deepcopy(tokenizer)
    other.add_tokens(["a new token"])
    other.save_pretrained(tmp_path / "teacher")
    (tmp_path / "teacher" / "config.json").write_text("{}")
    monkeypatch.setattr("mrlm.learn.policy.loading.load_model", None)
    file = tmp_path / "c.yaml"
    file.write_text(CONFIG.format(teacher="teacher", kind="jsd", folder=tmp_path / "run"))
    with pytest.raises(
        ConfigError, match=r"in one only or under another id: 1, .*training\.algorithm=sft"
    ):
        run_experiment(load_config(file))
