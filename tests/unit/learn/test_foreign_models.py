"""Models as users bring them: modules of their own, compiled ones, with adapters put in later, and
inside DistributedDataParallel."""

import copy
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from foreign import GRU, REWARDS, written
from forking import Launcher
from mrlm import GRPO, PPO, ExperimentConfig, Generator, Learner, Message, Rollout
from mrlm.build.run import build
from mrlm.core.errors import ModelError
from mrlm.learn.policy.loading import load_model, load_tokenizer
from mrlm.learn.policy.policy import Policy
from mrlm.learn.policy.wrapped_modules import logits_of
from ranks import World

pytestmark = pytest.mark.system


class Sums(GRU):
    """One that a compiler reads (it leaves recurrent cells alone)."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(torch.tanh(self.embedding(tokens).cumsum(1)).repeat(1, 1, 2)[..., :24])


def gradients(model: nn.Module) -> dict[str, Tensor]:
    named = model.named_parameters()
    return {name: weight.grad.clone() for name, weight in named if weight.grad is not None}


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], atol: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    assert sum(float(slope.norm()) for slope in expected.values()) > 1e-4
    for name, slope in expected.items():
        torch.testing.assert_close(found[name], slope, rtol=1e-4, atol=atol)


# -- modules of one's own --------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["tensor", "tuple", "object", "mapping"])
def test_any_module_that_returns_logits_is_trained(form: str, tokenizer: Any) -> None:
    """The gradient is that of the same loss written out, one text at a time, without padding."""
    model = GRU(form)
    learner = Learner(model, tokenizer, GRPO(loss_type="reinforce", scale_rewards="none"))
    rollouts = written()
    rollouts[1].messages[0] = Message("a longer question")
    for rollout in rollouts:
        rollout.task_id = "one"
    batch = learner.batch(rollouts, REWARDS)
    learner.calculate_loss(rollouts, REWARDS).backward()
    found = gradients(model)
    model.zero_grad()
    total = torch.zeros(())
    for sample in batch.samples:
        (turn,) = sample.turns
        logits = logits_of(model(torch.tensor([sample.ids])))[0]
        logprobs = logits.log_softmax(-1)[sample.starts[0] - 1 : -1]
        chosen = logprobs.gather(1, torch.tensor(turn.completion_ids)[:, None])
        total = total - float(turn.advantages) * chosen.sum() / 4  # type: ignore[arg-type]
    total.backward()
    assert_equal(found, gradients(model))


def test_a_module_of_ones_own_has_values_and_a_reference(tokenizer: Any) -> None:
    model = GRU()
    learner = Learner(model, tokenizer, PPO(kl_coef=0.1))
    loss = learner.calculate_loss(written(), REWARDS)
    loss.backward()
    assert loss.metrics["value_loss"] > 0
    head = learner.weights_of.value_head
    assert head is not None and head.linear.in_features == 24
    assert head.linear.weight.grad is not None and float(head.linear.weight.grad.norm()) > 0
    assert float(learner.batch(written(), REWARDS).ref_logprobs.abs().sum()) > 0


def test_a_module_of_ones_own_generates(tokenizer: Any) -> None:
    """Rows of different lengths get the log-probs that the module gives each alone."""
    model = GRU()
    rollouts = [Rollout().add_messages(Message("2+2=" * n)) for n in (1, 3, 2)]
    Generator(model, tokenizer, max_new_tokens=6).batch_generate(rollouts)
    for rollout in rollouts:
        (turn,) = rollout.turns
        logits = model(torch.tensor([[*turn.prompt_ids, *turn.completion_ids]]))[0]
        logprobs = logits.log_softmax(-1)[len(turn.prompt_ids) - 1 : -1]
        chosen = logprobs.gather(1, torch.tensor(turn.completion_ids)[:, None])[:, 0]
        torch.testing.assert_close(chosen, torch.tensor(turn.logprobs), atol=1e-5, rtol=1e-4)
    learner = Learner(model, tokenizer, GRPO())
    assert learner.calculate_loss(rollouts, REWARDS[:3]).metrics["approx_kl"] < 1e-9


class Nothing(GRU):
    def forward(self, tokens: Tensor) -> Any:
        return self.cells(self.embedding(tokens))[1][0]


def test_what_is_no_language_model_is_named(tokenizer: Any) -> None:
    with pytest.raises(ModelError, match="must return logits"):
        Learner(Nothing(), tokenizer, GRPO()).calculate_loss(written(), REWARDS)

    class Two(GRU):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(24, 320)

    with pytest.raises(ModelError, match="2 of its linear layers could be that"):
        Learner(Two(), tokenizer, PPO())
    wrapped = types.SimpleNamespace(_orig_mod=object.__new__(nn.parallel.DistributedDataParallel))
    with pytest.raises(ModelError, match="compile inside"):
        Policy("p", wrapped, tokenizer)


# -- compiled and changed models -------------------------------------------------------------------


class Counting:
    """A compiler that runs graphs as they are and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            self.calls += 1
            return graph.forward(*args)

        return run


def by_wrapper(model: Any, backend: Any) -> Any:
    return torch.compile(model, backend=backend)


def in_place(model: Any, backend: Any) -> Any:
    model.compile(backend=backend)
    return model


def its_forward(model: Any, backend: Any) -> Any:
    model.forward = torch.compile(model.forward, backend=backend)
    return model


@pytest.mark.parametrize(
    ("kind", "how"),
    [("own", by_wrapper), ("own", in_place), ("own", its_forward), ("llama", by_wrapper)]
    + [pytest.param("llama", how, marks=pytest.mark.slow) for how in (in_place, its_forward)],
)
def test_a_compiled_forward_is_used(how: Any, kind: str, model: Any, tokenizer: Any) -> None:
    torch._dynamo.reset()
    plain = Sums() if kind == "own" else model
    learner = Learner(copy.deepcopy(plain), tokenizer, GRPO())
    learner.calculate_loss(written(), REWARDS).backward()
    expected = gradients(learner.weights_of.model)
    backend = Counting()
    learner = Learner(how(plain, backend), tokenizer, GRPO())
    before = backend.calls
    learner.calculate_loss(written(), REWARDS).backward()
    assert backend.calls > before
    assert_equal(gradients(plain), expected, atol=2e-5)


def test_a_forward_that_is_compiled_after_the_first_loss_is_used_from_then_on(
    model: Any, tokenizer: Any
) -> None:
    torch._dynamo.reset()
    learner = Learner(model, tokenizer, GRPO())
    learner.calculate_loss(written(), REWARDS)
    assert learner.weights_of.packed
    backend = Counting()
    model.compile(backend=backend)
    learner.calculate_loss(written(), REWARDS)
    assert backend.calls > 0 and not learner.weights_of.packed


def test_a_forward_that_accelerate_replaced_is_used(model: Any, tokenizer: Any) -> None:
    calls = []
    forward = model.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return forward(*args, **kwargs)

    model.forward = counted
    Learner(model, tokenizer, GRPO()).calculate_loss(written(), REWARDS).backward()
    assert calls


def test_an_adapter_that_is_put_in_after_the_first_loss_is_trained(
    model: Any, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    peft = pytest.importorskip("peft")
    learner = Learner(model, tokenizer, GRPO())
    learner.calculate_loss(written(), REWARDS).backward()
    assert learner.weights_of.packed
    settings = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, settings)
    model.zero_grad()
    learner.calculate_loss(written(), REWARDS).backward()
    found = {name: slope for name, slope in gradients(model).items() if "lora" in name}
    model.zero_grad()
    assert not learner.weights_of.packed
    assert "an adapter was put into it" in caplog.text
    Learner(adapted, tokenizer, GRPO()).calculate_loss(written(), REWARDS).backward()
    assert_equal(found, {n: s for n, s in gradients(model).items() if "lora" in n}, atol=1e-5)


def test_a_hook_that_comes_after_the_first_loss_is_called(model: Any, tokenizer: Any) -> None:
    learner = Learner(model, tokenizer, GRPO())
    learner.calculate_loss(written(), REWARDS)
    seen = []
    model.model.layers[0].register_forward_hook(lambda *_: seen.append(1))
    learner.calculate_loss(written(), REWARDS)
    assert seen


# -- several processes -----------------------------------------------------------------------------

DISTRIBUTED = """
import json, sys
import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, AutoTokenizer
from mrlm import Learner, MAPPO, TeamLearner, default_model
from mrlm.core import registry
from foreign import GRU, REWARDS, written, play, settings_of

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
kind, name = sys.argv[1], sys.argv[2]
path = default_model()
tokenizer = AutoTokenizer.from_pretrained(path)
make = lambda: GRU() if kind == "gru" else AutoModelForCausalLM.from_pretrained(path)
models = [make(), make()]
wrapped = [DistributedDataParallel(model) for model in models]
algorithm = registry.load("algorithms", name)(**settings_of(name))
if name == "mappo":
    team = TeamLearner({a: (m, tokenizer) for a, m in zip("ab", wrapped)}, algorithm)
    loss = team.calculate_loss(play()[rank::size], REWARDS[rank::size])
    learned = [team.critics[0].body.model, team.critics[0].body.value_head]
else:
    learner = Learner(wrapped[0], tokenizer, algorithm)
    questions = ["2+2=", "3+3="][rank::size]
    rollouts = [each for question in questions for each in written(question=question)]
    if sys.argv[3] == "no_sync":  # two losses, exchanged once
        with wrapped[0].no_sync():
            (learner.calculate_loss(rollouts, REWARDS * len(questions)) / 2).backward()
        (learner.calculate_loss(rollouts, REWARDS * len(questions)) / 2).backward()
    loss = learner.calculate_loss(rollouts, REWARDS * len(questions))
    learned = [learner.weights_of.value_head]
if sys.argv[3] != "no_sync":
    loss.backward()
parts = [*models, *(each for each in learned if each is not None)]
slopes = {f"{i}.{n}": p.grad for i, m in enumerate(parts) for n, p in m.named_parameters()}
torch.save({n: s for n, s in slopes.items() if s is not None}, f"slopes-{size}-{rank}.pt")
values = [torch.zeros(()) for _ in range(size)]
torch.distributed.all_gather(values, loss.detach().as_subclass(torch.Tensor))
if rank == 0:
    json.dump(sum(map(float, values)) / size, open(f"loss-{size}.json", "w"))
"""


@pytest.mark.parametrize(
    ("kind", "name", "how"),
    [
        ("llama", "ppo", "sync"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("llama", "grpo", "sync"),
                ("gru", "reinforce", "sync"),
                ("gru", "grpo", "no_sync"),
                ("llama", "mappo", "sync"),
            )
        ),
    ],
)
def test_two_wrapped_processes_have_the_gradients_of_one(
    kind: str, name: str, how: str, tmp_path: Path, launcher: Launcher
) -> None:
    """Answers of uneven length, half of the questions each."""
    (tmp_path / "program.py").write_text(DISTRIBUTED)
    for size in (1, 2):
        words = [str(tmp_path / "program.py"), kind, name, how]
        world = World(launcher, size, words, tmp_path)
        assert world.wait() == [0] * size, world.said(0)
    one = torch.load(tmp_path / "slopes-1-0.pt")
    both = [torch.load(tmp_path / f"slopes-2-{rank}.pt") for rank in range(2)]
    for found in both:
        assert_equal(found, one, atol=1e-5)
    assert all(torch.equal(both[0][name], both[1][name]) for name in one)
    losses = [float((tmp_path / f"loss-{size}.json").read_text()) for size in (1, 2)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.parametrize("trusted", [False, True])
def test_code_that_came_with_a_model_runs_only_where_it_is_trusted(
    trusted: bool, tiny_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said is passed on, for the model and for its tokenizer."""
    seen: list[bool] = []
    for kind in (transformers.AutoTokenizer, transformers.AutoModelForCausalLM):
        known = kind.from_pretrained

        def note(*given: Any, known: Any = known, **options: Any) -> Any:
            seen.append(options["trust_remote_code"])
            return known(*given, **options)

        monkeypatch.setattr(kind, "from_pretrained", note)
    load_tokenizer(tiny_path, trusted)
    load_model(tiny_path, trust_remote_code=trusted)
    assert seen == [trusted, trusted]
    seen.clear()
    given = {"model_name_or_path": tiny_path, "trust_remote_code": trusted}
    build(ExperimentConfig(environments=[{"env_type": "relay"}], model=given))
    assert len(seen) >= 2 and set(seen) == {trusted}
