"""A training pass with the activations that the engine kept is one without them, and only tokens
that the same weights sampled are taken from it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from families import VOCABULARY, family
from mrlm import ExperimentConfig, Trainer
from mrlm.algorithms.grpo import GRPO
from mrlm.core.types import SamplingParams, Turn
from mrlm.engines.lean.engine import LeanEngine
from mrlm.learn.data.batch import Sample, merge, pack
from mrlm.learn.fast import attention, kept
from mrlm.learn.fast.forward import LeanForward
from mrlm.learn.fast.kept import Kept, Known, StepActivations
from mrlm.learn.joint_update import Work, accumulate
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Request

MOST = 4096
NONE = torch.zeros(0)
CONFIG: dict[str, Any] = {
    "model": {"model_name_or_path": "mrlm/tiny"},
    "generation": {"max_new_tokens": 8},
    "training": {"algorithm": "grpo", "batch_size": 2, "save_steps": 1, "learning_rate": 1e-3},
    "grpo": {"group_size": 4},
}
Player = tuple[Policy, LeanEngine]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "WIDE", 1)
    monkeypatch.setattr(kept, "LEAST", 1)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Known | None]]:
    """What was known in each pass."""
    found: list[Known | None] = []
    plain = LeanForward.hidden

    def hidden(self: LeanForward, *given: Any, **named: Any) -> list[torch.Tensor]:
        found.append(named["known"])
        return plain(self, *given, **named)

    monkeypatch.setattr(LeanForward, "hidden", hidden)
    yield found


def player(
    name: str, tokenizer: Any, most: int = MOST, precision: Any = "fp32", **engine: Any
) -> Player:
    policy = Policy("policy", family(name), tokenizer, precision=precision)
    policy.keep(most)
    return policy, LeanEngine({"policy": policy}, unseen_writes=False, **engine)


def said(
    engine: LeanEngine,
    prompts: Sequence[Sequence[int]],
    sizes: Sequence[int],
    seed: int = 0,
    split: str = "train",
    seeds: Sequence[int] | None = None,
) -> list[Turn]:
    """A turn for each prompt, of so many tokens at most."""
    drawn = range(seed, seed + len(prompts)) if seeds is None else seeds
    params = [SamplingParams(max_new_tokens=size) for size in sizes]
    requests = [
        Request("policy", list(prompt), each, drawn[place], (seed, split, place))
        for place, (prompt, each) in enumerate(zip(prompts, params, strict=True))
    ]
    answers = asyncio.run(engine.generate(requests))
    turns = [
        Turn("a", "policy", request.prompt_ids, answer.token_ids, sampling=request.sampling)
        for request, answer in zip(requests, answers, strict=True)
    ]
    for place, (turn, answer) in enumerate(zip(turns, answers, strict=True)):
        turn.logprobs, turn.advantages = answer.logprobs, 1.0 - 0.3 * place
    return turns


def played(engine: LeanEngine, seed: int, siblings: int, turns: int) -> list[Sample]:
    """Conversations of groups with a common prompt, with new words before each further turn."""
    rng = np.random.default_rng(seed)

    def words(least: int, most: int) -> list[int]:
        return rng.integers(3, VOCABULARY, rng.integers(least, most)).tolist()

    talks: list[list[Turn]] = [[] for _ in range(3 * siblings)]
    prompts = [ids for ids in (words(1, 20) for _ in range(3)) for _ in range(siblings)]
    for number in range(turns):
        sizes = rng.integers(1, 14, len(prompts)).tolist()
        found = said(engine, prompts, sizes, 100 * seed + 10 * number)
        for talk, turn in zip(talks, found, strict=True):
            talk.append(turn)
        prompts = [[*t.prompt_ids, *t.completion_ids, *words(1, 6)] for t in found]
    return [
        sample
        for place, talk in enumerate(talks)
        for sample in merge(talk, unit=place, rollout=place)
    ]


def update(policy: Policy, samples: Sequence[Sample], **more: Any) -> dict[str, torch.Tensor]:
    """The log-probs and gradients of a pass."""
    found: dict[str, torch.Tensor] = {}
    algorithm = GRPO()

    def loss_of(batch: Any, outputs: Any) -> Any:
        found["logprobs"] = torch.cat([found.get("logprobs", NONE), outputs.logprobs.detach()])
        return algorithm.loss(batch, outputs)

    accumulate([Work(policy, pack(list(samples)), loss_of, torch.Tensor.backward, **more)])
    for name, weight in policy.named_parameters().items():
        assert weight.grad is not None
        found[name], weight.grad = weight.grad, None
    return found


def confirm(policy: Policy) -> Kept:
    assert policy.kept is not None and policy.kept.confirm()
    return policy.kept


def same(
    known: dict[str, torch.Tensor],
    plain: dict[str, torch.Tensor],
    exact: dict[str, torch.Tensor] | None = None,
) -> None:
    """Both are as near to the results in float64, and to each other."""
    for name, found in known.items():
        unit = float(plain[name].abs().max())
        torch.testing.assert_close(found, plain[name], atol=3e-5 * unit, rtol=0)
        if exact is not None:
            gap, usual = (float((x - exact[name]).abs().max()) for x in (found, plain[name]))
            assert gap < 3 * usual + 5e-6 * unit, name


@pytest.mark.parametrize("name", ["llama-tied-biased", "qwen2-windows", "qwen3", "gemma"])
@pytest.mark.parametrize(("siblings", "turns", "rows"), [(4, 1, 64), (1, 1, 2), (3, 3, 5)])
@pytest.mark.parametrize("prompts", [True, False])
def test_a_pass_with_them_is_one_without(
    name: str,
    siblings: int,
    turns: int,
    rows: int,
    prompts: bool,
    tokenizer: Any,
    passes: list[Known | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not prompts:
        monkeypatch.setattr(Kept, "begin_prompts", lambda *_: None)
    exact = Policy("policy", family(name).double(), tokenizer)
    policy, engine = player(name, tokenizer, batch_size=rows)  # fewer rows than requests: refilled
    for seed in range(3):
        if policy.kept is not None:
            policy.kept.clear()
        samples = played(engine, seed, siblings, turns)
        plain = update(policy, samples)
        confirm(policy)
        passes.clear()
        known = update(policy, samples)
        (found,) = passes
        assert found is not None
        if prompts:
            assert found.every.fresh is None and all(found.whole)
        else:
            assert len(found.kept) == turns
            read = sum(len(turn) - 1 for sample in samples for turn in sample.turns)
            alike = {(*sample.ids,) for sample in samples}
            if len(alike) == len(samples) and siblings == 1:
                assert int((found.calls >= 0).sum()) == read
            assert found.every.fresh is not None
            assert turns > 1 or any(found.whole) == (siblings > 1)
        same(known, plain, update(exact, samples))


def test_rows_that_say_the_same_share_places(tokenizer: Any, passes: list[Known | None]) -> None:
    policy, engine = player("qwen3", tokenizer)
    turns = said(engine, [[5, 6, 7]] * 4 + [[5, 6, 8, 9]] * 4, [9] * 8, seeds=[3, 3, 3, 4] * 2)
    assert policy.kept is not None
    prompts, steps = policy.kept.calls
    assert len(prompts.layers[0]["qkv"]) == 5  # 5 6 7 and 8 9
    assert isinstance(steps, StepActivations) and steps.stop <= 4 * 8 < sum(map(len, turns)) - 8
    samples = [
        sample for place, turn in enumerate(turns) for sample in merge([turn], place, rollout=place)
    ]
    plain = update(policy, samples)
    confirm(policy)
    same(update(policy, samples), plain)
    assert passes[-1] is not None and passes[-1].every.fresh is None


@pytest.mark.parametrize("name", ["llama-tied-biased", "qwen3"])
def test_in_16_bits_they_are_as_near_to_the_exact_pass(
    name: str, tokenizer: Any, passes: list[Known | None]
) -> None:
    exact = Policy("policy", family(name).double(), tokenizer)
    policy, engine = player(name, tokenizer, precision="bf16")
    samples = played(engine, 0, 6, 1)
    plain, truth = update(policy, samples), update(exact, samples)
    confirm(policy)
    known = update(policy, samples)
    assert passes[-1] is not None

    def gap(found: dict[str, torch.Tensor]) -> float:
        return float(np.mean([(found[n] - truth[n]).norm() / truth[n].norm() for n in truth]))

    assert 1e-4 < gap(known) < 1.1 * gap(plain) < 0.2


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("most", [1 << 24, 0])
def test_blocks_of_scores_give_the_gradient_of_attention(
    most: int, given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "BLOCK", 4 * 7 * 7)  # a sequence at a time
    monkeypatch.setattr(attention, "quick", lambda: True)
    monkeypatch.setattr(attention, "MOST", most)  # else scores are not stored
    torch.manual_seed(0)
    shapes = [(3, 4, 7, 8), (3, 2, 7, 8), (3, 2, 7, 8)]
    rounded = [torch.randn(shape).bfloat16() for shape in shapes]
    mask = torch.zeros(3, 1, 7, 7).masked_fill_(torch.ones(7, 7).triu(1).bool(), -torch.inf)
    mask[1, 0, :, 2:4] = -torch.inf
    mask[1, 0, :, 0] = 0
    grad = torch.randn(shapes[0]).bfloat16()

    def run(kind: torch.dtype, known: Any = None) -> list[torch.Tensor]:
        own = [x.to(kind).requires_grad_() for x in rounded]
        q, k, v = own
        found = attention.attention(q, k, v, mask.to(kind), 0.3, None, known)
        return [found.detach(), *torch.autograd.grad(found, own, grad.to(kind))]

    truth = run(torch.float64)
    known = None
    if given:  # with sums that are a little off
        scores = rounded[0].float() @ rounded[1].float().repeat_interleave(2, 1).transpose(2, 3)
        known = truth[0].float(), (0.3 * scores + mask).logsumexp(-1) + 0.01 * (most > 0)
    for found, exact in zip(run(torch.bfloat16, known), truth, strict=True):
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), exact, atol=0.02, rtol=0.01)


def test_other_samples_in_the_batch_are_computed(
    tokenizer: Any, passes: list[Known | None]
) -> None:
    policy, engine = player("llama", tokenizer)
    samples = played(engine, 0, 4, 1)
    other = [Turn("a", "policy", [5, 6, 7], [8, 9, 10, 11])]
    other[0].logprobs, other[0].advantages = [-1.0] * 4, 0.7
    both = [*samples, *merge(other, unit=99, rollout=99)]
    plain = update(policy, both)
    confirm(policy)
    same(update(policy, both), plain)
    assert passes[-1] is not None
    same(update(policy, merge(other)), update(policy, merge(other)))
    assert passes[-1] is None


CHANGES: list[Callable[[torch.nn.Parameter], Any]] = [
    lambda weight: weight.data.add_(1e-3),
    lambda weight: weight.data.copy_(weight.data.flip(0)),
]


@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_moved_take_nothing(
    change: Any, tokenizer: Any, passes: list[Known | None]
) -> None:
    policy, engine = player("llama", tokenizer)
    samples = played(engine, 0, 4, 1)
    change(next(iter(policy.parameters())))
    assert policy.kept is not None and not policy.kept.confirm()
    update(policy, samples)
    assert passes[-1] is None and not policy.kept.calls
    # and what the engine samples with its old copies is not theirs
    played(engine, 1, 4, 1)
    assert policy.kept.calls and not policy.kept.confirm()


def test_nothing_is_taken_unconfirmed(tokenizer: Any, passes: list[Known | None]) -> None:
    policy, engine = player("llama", tokenizer)
    update(policy, played(engine, 0, 4, 1))
    assert passes[-1] is None


def test_what_is_not_trained_on_is_not_kept(tokenizer: Any) -> None:
    policy, engine = player("llama", tokenizer, most=30)
    assert policy.kept is not None
    said(engine, [[5, 6]] * 2, [8, 8], split="eval")
    assert not policy.kept.calls
    said(engine, [[5, 6]] * 4, [9] * 4)  # 32 tokens
    assert not policy.kept.calls
    said(engine, [[5, 6]] * 2, [9, 9])
    assert len(policy.kept.calls) == 2  # the prompt, and what follows
    said(engine, [[5, 6]] * 2, [9, 9], seed=5)  # 32 in all
    assert len(policy.kept.calls) == 2  # the prompt, and what follows
    for name in ("gemma2", "gemma3"):  # the decoder does not store what their norms read
        other = Policy("policy", family(name), tokenizer)
        other.keep(MOST)
        assert other.kept is None


def test_memory_is_released(tokenizer: Any) -> None:
    policy, engine = player("llama", tokenizer)

    def kept_call() -> list[weakref.ref[Any]]:
        gc.collect()
        return [weakref.ref(call.layers[0]["gate_up"]) for call in confirm(policy).calls]

    samples = played(engine, 0, 4, 1)
    calls = kept_call()
    update(policy, samples, last=False)
    assert len(calls) == 2 and all(call() is not None for call in calls)
    update(policy, samples)
    assert not any(call() is not None for call in calls)

    played(engine, 1, 4, 1)
    calls = kept_call()
    asyncio.run(engine.load_weights("policy", policy, 1))
    assert len(calls) == 2 and not any(call() is not None for call in calls)


def test_passes_leave_no_tensors(tokenizer: Any, passes: list[Known | None]) -> None:
    """Outputs that a function returns and keeps would hold each other for ever."""
    policy, engine = player("qwen3", tokenizer)

    def left(seed: int) -> int:
        samples = played(engine, seed, 3, 1)
        confirm(policy)
        update(policy, samples)
        assert passes[-1] is not None and all(passes[-1].whole)
        passes.clear()
        return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())

    left(0)
    gc.collect()
    gc.disable()
    try:
        assert left(1) == left(2)
    finally:
        gc.enable()


def paid(completions: Sequence[str]) -> list[float]:
    return [float(sum(text.encode()) % 7) for text in completions]


def trained(folder: Path, steps: int, resume: bool = False) -> Any:
    config = ExperimentConfig(**CONFIG, output_dir=str(folder))
    rows = [{"prompt": text} for text in ("one", "two", "three")]
    trainer = Trainer(config=config, train_dataset=rows, reward_func=paid)
    return trainer.train(steps, resume_from_checkpoint=folder if resume else None)


def test_runs_take_them(
    tmp_path: Path, passes: list[Known | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = trained(tmp_path / "taken", 3)
    assert sum(each is not None for each in passes) == 3
    # measured in passes of their own, over one sample in 16
    assert all(0 <= row["mismatch_kl"] < 1e-9 for row in taken.history)
    monkeypatch.setattr(kept, "WIDE", 1 << 20)
    passes.clear()
    plain = trained(tmp_path / "plain", 3)
    assert not any(passes)
    for one, two in zip(taken.history, plain.history, strict=True):
        assert one["reward/mean"] == two["reward/mean"]
        assert one["grad_norm"] == pytest.approx(two["grad_norm"], rel=1e-4) != 0


def test_resumed_runs_have_the_same_bits(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", 3)
    trained(tmp_path / "half", 2)
    rest = trained(tmp_path / "half", 3, resume=True)
    for name in ("loss", "grad_norm", "reward/mean"):
        assert whole.history[-1][name] == rest.history[-1][name], name
    files = [tmp_path / each / "final" / "model.safetensors" for each in ("whole", "half")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_call_of_few_rows_keeps_nothing(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy("policy", family("llama", 0), tokenizer)
    policy.keep(1000)
    monkeypatch.setattr(kept, "LEAST", 4)
    assert policy.kept is not None
    assert policy.kept.begin(30, 3) is None
    assert policy.kept.begin(30, 4) is not None
