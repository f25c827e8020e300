"""Learning on an accelerator: what is computed equals the CPU's, in few kernels, without waiting
and without large tensors. One process learns on a fake device; tests read what it counted."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ranks
from families import family
from forking import Launcher
from mrlm.algorithms.grpo import GRPO
from mrlm.core.types import Turn
from mrlm.learn.agent_numbers import AgentNumbers
from mrlm.learn.data.batch import Sample, merge, pack
from mrlm.learn.fast import attention
from mrlm.learn.fast.adapters import PackedTree
from mrlm.learn.fast.forward import LeanForward
from mrlm.learn.fast.llama_modules import anatomy_of
from mrlm.learn.fast.prefix_tree import plant
from mrlm.learn.fast.repeatable import repeatable, strictly
from mrlm.learn.fast.varlen_attention import (
    EfficientKernel,
    FlashKernel,
    Shape,
    disagreement,
    effective,
    kernel_for,
)
from mrlm.learn.joint_update import Work, accumulate
from mrlm.learn.mismatch import FirstLook
from mrlm.learn.optimizer import training_mode
from mrlm.learn.policy.lora import add_adapter
from mrlm.learn.policy.policy import Policy
from mrlm.learn.update_meter import Trace
from mrlm.planning.memory import activations
from mrlm.planning.model_shape import shape_in

pytestmark = pytest.mark.system

EQUAL = ["llama-tied-biased", "qwen2-windows", "gemma2", "gemma3"]
"""Families that have between them what any has."""
EVERY: dict[str, Any] = {"r": 2, "target_modules": "all-linear"}
QUERIES: dict[str, Any] = {"r": 3, "target_modules": ["q_proj"]}
ADAPTERS = {"lora": (EVERY, QUERIES), "alike": (EVERY, EVERY), "single": (EVERY,)}
WAYS = ["plain", "again", "loop", *ADAPTERS]
"""A step; with recomputed activations; `loss.backward()` of an own loop; and of adapters."""
KERNELS = 60
"""Most kernels of a layer and a micro-batch."""
LORA_KERNELS = 100
"""The same with an adapter of all linear maps, on a base that is not trained."""


class Tokenizer:
    pad_token_id, eos_token_id = 0, 2


def samples(prompt: int = 12, answers: int = 4, size: int = 9, prompts: int = 2) -> list[Sample]:
    """Answers that share prompts, and one that shares the beginning of another."""
    make, found = np.random.default_rng(0), []
    for number in range(prompts):
        begin = make.integers(3, 299, prompt + number).tolist()
        for place in range(answers):
            ids = make.integers(3, 299, size - place).tolist()
            if place == 1:
                ids = [*found[-1].turns[0].completion_ids[:3], *ids[3:]]
            turn = Turn("ab"[place % 2], "policy", begin, ids, logprobs=[-5.0] * len(ids))
            turn.advantages = np.linspace(-1.0, 1.0, len(ids))
            turn.trace = {}
            found += merge([turn], unit=len(found), rollout=len(found))
    return found


def policies(name: str, way: str, precision: Any, device: Any, **more: Any) -> list[Policy]:
    model = family(name, **more)
    names: Sequence[Any] = [None]
    if way in ADAPTERS:
        names = ["one", "two"][: len(ADAPTERS[way])]
        for adapter, shape in zip(names, ADAPTERS[way], strict=True):
            model = add_adapter(model, adapter, {"alpha": 4, "dropout": 0.0, **shape})
        torch.manual_seed(1)
        with torch.no_grad():
            for key, weight in model.named_parameters():
                if "lora_B" in key:
                    weight.copy_(torch.randn(weight.shape) * 0.3)
    model = model.to(device)
    return [
        Policy("policy", model, Tokenizer(), adapter=each, precision=precision, chat=object())  # type: ignore[arg-type]
        for each in names
    ]


def step(owners: Sequence[Policy], rows: list[Sample], device: Any, way: str) -> float:
    """The gradients of one micro-batch, added to `grad`; the loss."""
    losses = GRPO().loss
    if way == "loop":
        batch = pack(rows, None, 0, device)
        loss = losses(batch, owners[0].forward(batch)).total
        loss.backward()
        return loss
    look, numbers, trace = FirstLook(0), AgentNumbers(), Trace()

    def loss_of(batch: Any, outputs: Any) -> Any:
        trace.add(batch, outputs)
        look.add(batch, outputs.logprobs)
        numbers.add(batch, loss := losses(batch, outputs))
        return loss

    works = [
        Work(owner, pack(rows, None, 0, device), loss_of, lambda loss: loss.backward())
        for owner in owners
    ]
    return accumulate(works)[0].total


def learned(name: str, way: str, device: Any) -> tuple[float, dict[str, Tensor]]:
    """The loss of one of two micro-batches, and the gradients of both."""
    owners = policies(name, way, "fp32", device)
    assert all(owner.packed for owner in owners)
    model = owners[0].model
    with training_mode(owners, way == "again"):
        for _ in range(2):
            loss = step(owners, samples(), device, way)
    grads = {key: x.grad.cpu() for key, x in model.named_parameters() if x.grad is not None}
    return float(loss), grads


def gap(name: str, way: str, device: Any) -> float:
    """Largest relative difference from the CPU."""
    (loss, grads), (own, wanted) = learned(name, way, device), learned(name, way, "cpu")
    assert grads.keys() == wanted.keys() and len(wanted) > 6
    gaps = [float((grads[key] - x).norm() / (x.norm() + 1e-12)) for key, x in wanted.items()]
    return max(*gaps, abs(loss - own) / abs(own))


def counts(name: str, way: str, precision: str, device: Any) -> dict[str, Any]:
    """Kernels of a layer and of the rest, in a first and in a later micro-batch; what was waited
    for in the later one."""
    import fake_accelerator

    found: dict[int, list[int]] = {}
    waits: dict[str, int] = {}
    for layers in (3, 5):
        owners = policies(name, way, precision, device, num_hidden_layers=layers)[:1]
        assert owners[0].packed
        for _ in range(2):
            rows = samples(64, 4, 32)
            with fake_accelerator.counted() as seen:
                step(owners, rows, device, "plain")
            found.setdefault(layers, []).append(sum(seen.kernels.values()))
            waits = dict(seen.waits)
    first, later = ((b - a) / 2 for a, b in zip(found[3], found[5], strict=True))
    rest = found[3][1] - 3 * later
    return {"first": first, "later": later, "rest": rest, "waits": waits}


def largest(device: Any, name: str = "llama") -> int:
    """Numbers of the largest new tensor of a step over prompts of 1,024 tokens."""
    import fake_accelerator

    owners = policies(name, "plain", "fp32", device, max_position_embeddings=2048)
    assert owners[0].packed
    with fake_accelerator.counted() as seen:
        step(owners, samples(1024, 2, 8, prompts=1), device, "plain")
    return seen.largest // 4


def kept(device: torch.device) -> list[int]:
    """Bytes that autograd keeps of a forward pass in bf16, and what the plan says."""
    model = family("llama", num_hidden_layers=9).to(device)
    held: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        if len(x) == 200 and x.is_floating_point():  # a row for every token
            held[x.data_ptr()] = x
        return x

    tree = plant([list(range(201))], np.zeros(200, dtype=np.int64), np.arange(200), device)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        LeanForward(anatomy_of(model), torch.bfloat16).hidden([PackedTree(tree, None)])
    shape: Any = shape_in(model.config.to_dict())
    return [sum(x.nbytes for x in held.values()), activations(shape, 200, 2, fused=True)]


def offloaded(device: torch.device) -> dict[str, Any]:
    """Six steps of AdamW with moments on the host, in parts of one weight, and half of them after
    loading its state, against torch's own: largest difference, and where the moments are."""
    from unittest import mock

    from mrlm.learn import adam as module

    make = torch.Generator().manual_seed(3)
    shapes = [(4, 3), (5,), (2, 6)]
    first = [torch.randn(shape, generator=make) for shape in shapes]
    mine = [torch.nn.Parameter(x.to(device)) for x in first]
    theirs = [torch.nn.Parameter(x.clone()) for x in first]
    how: Any = {"lr": 0.1, "weight_decay": 0.1, "fused": True}

    def groups(weights: list[Any]) -> list[dict[str, Any]]:
        return [{"params": weights[:2]}, {"params": weights[2:], "lr": 0.01}]

    adam = torch.optim.AdamW(groups(theirs), **how)
    host = module.HostAdam(groups(mine), decoupled_weight_decay=True, **how)
    with mock.patch.object(module, "AT_ONCE", 12):
        for number in range(6):
            if number == 3:
                state = host.state_dict()
                host = module.HostAdam(groups(mine), decoupled_weight_decay=True, **how)
                host.load_state_dict(state)
            for weight, own in zip(theirs, mine, strict=True):
                weight.grad = torch.randn(weight.shape, generator=make)
                own.grad = weight.grad.to(device)
            adam.step()
            host.step()
    moments = [x for each in host.state.values() for x in each.values() if x.ndim]
    pairs = zip(theirs, mine, strict=True)
    return {
        "gap": max(float((a - b.cpu()).detach().abs().max()) for a, b in pairs),
        "moments": sorted({x.device.type for x in moments}),
        "count": len(moments),
    }


def main(path: Path) -> None:
    """Everything on the fake accelerator, as one JSON file."""
    import vendor_kernels

    device = vendor_kernels.accelerator(pytest.MonkeyPatch())
    found: dict[str, Any] = {"largest": largest(device), "offloaded": [offloaded(device)]}
    found["kept"] = kept(device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "SCORES", 1 << 16)
        found["largest with a soft cap"] = largest(device, "gemma2")
        patch.setattr(attention, "SCORES", 500)
        found["gemma2 blocks"] = gap("gemma2", "plain", device)
    for name in EQUAL:
        for way in WAYS if name == "llama-tied-biased" else ["plain"]:
            found[f"{name} {way}"] = gap(name, way, device)
    for precision in ("fp32", "bf16"):
        for name, way in (("llama", "plain"), ("llama", "lora")):
            found[f"{name} {way} {precision}"] = counts(name, way, precision, device)
    path.write_text(json.dumps(found))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory, launcher: Launcher) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("accelerated")
    path = folder / "found.json"
    done = launcher.run([__file__, str(path)], folder, PYTHONPATH=ranks.IMPORTS)
    assert done.code == 0, done.err[-3000:]
    return json.loads(path.read_text())


@pytest.mark.parametrize("name", EQUAL)
def test_gradients_are_those_of_the_cpu(name: str, elsewhere: dict[str, Any]) -> None:
    found = {key: gap for key, gap in elsewhere.items() if key.startswith(f"{name} ")}
    gaps = {key: gap for key, gap in found.items() if isinstance(gap, float)}
    assert gaps and max(gaps.values()) < 1e-5, gaps


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_layer_takes_few_kernels(precision: str, elsewhere: dict[str, Any]) -> None:
    found = elsewhere[f"llama plain {precision}"]
    assert 30 < found["first"] <= found["later"] <= KERNELS, found
    adapted = elsewhere[f"llama lora {precision}"]
    assert adapted["first"] <= adapted["later"] <= LORA_KERNELS, adapted


def test_nothing_is_waited_for(elsewhere: dict[str, Any]) -> None:
    found = [each["waits"] for each in elsewhere.values() if isinstance(each, dict)]
    assert len(found) == 4 and not any(found), found


def test_no_tensor_has_the_size_of_a_prompt_squared(elsewhere: dict[str, Any]) -> None:
    assert 300 * 64 < elsewhere["largest"] < 1024**2
    assert 1 << 15 < elsewhere["largest with a soft cap"] < 1024**2 // 2, "of four heads"


def test_a_forward_pass_keeps_what_is_planned(elsewhere: dict[str, Any]) -> None:
    assert elsewhere["kept"][1] == pytest.approx(elsewhere["kept"][0], rel=0.05)


def test_moments_stay_on_the_host_with_equal_numbers(elsewhere: dict[str, Any]) -> None:
    assert elsewhere["offloaded"] == [{"gap": 0.0, "moments": ["cpu"], "count": 6}]


@pytest.mark.parametrize("window", [None, 3])
def test_an_example_tells_a_wrong_kernel(window: int | None) -> None:
    """The example that a GPU computes before it uses a kernel, here with kernels in Python."""
    from vendor_kernels import AttentionKernel, define

    define()
    cpu, shape = torch.device("cpu"), Shape(torch.float32, 4, 2, 16, window)
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):  # as engines call it
        with mode():
            assert disagreement(AttentionKernel(), cpu, shape) is None

    class First(AttentionKernel):
        """Sees one key too many."""

        def forward(self, q: Any, k: Any, v: Any, how: Any) -> Any:
            return super().forward(q, k, v, how._replace(window=2))

    class Deaf(AttentionKernel):
        def backward(self, *inputs: Any) -> Any:
            dq, dk, dv = super().backward(*inputs)
            return dq, dk, dv * 1.5

    assert "differs by" in str(disagreement(First(), cpu, shape))
    assert "differs by" in str(disagreement(Deaf(), cpu, shape))
    for kernel in (FlashKernel(), EfficientKernel()):  # which a CPU has not
        assert "NotImplementedError" in str(disagreement(kernel, cpu, shape))
    assert kernel_for(cpu, shape) is None


def test_a_window_that_hides_nothing_is_none() -> None:
    assert [effective(window, 8) for window in (None, 7, 8, 9)] == [None, 7, None, None]


def test_sums_on_a_gpu_have_a_fixed_order_for_as_long_as_a_model_learns() -> None:
    import torch.utils.deterministic as memory

    def state() -> tuple[bool, bool, bool]:
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        return torch.are_deterministic_algorithms_enabled(), warns, memory.fill_uninitialized_memory  # type: ignore

    before = state()
    assert not before[0]
    with repeatable(torch.device("cpu")):
        assert state() == before
    with pytest.raises(KeyError), repeatable(torch.device("cuda")):
        assert state() == (True, True, False)
        with repeatable(torch.device("cuda", 1)):
            assert state() == (True, True, False)
        assert state() == (True, True, False)
        with strictly():
            assert state() == (True, False, False)
        assert state() == (True, True, False)
        raise KeyError
    assert state() == before
    with strictly():
        assert state() == before
    torch.use_deterministic_algorithms(True)  # a program that insists
    try:
        with repeatable(torch.device("cuda")):
            assert state() == (True, False, before[2])
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head", [64, 128])
def test_kernels_of_a_gpu_agree(dtype: torch.dtype, window: int | None, head: int) -> None:
    device, shape = torch.device("cuda", 0), Shape(dtype, 8, 2, head, window)
    kernels = [EfficientKernel()] * (window is None) + [FlashKernel()] * (dtype == torch.bfloat16)
    assert type(kernel_for(device, shape)) is (type(kernels[-1]) if kernels else type(None))
    assert {type(x).__name__: disagreement(x, device, shape) for x in kernels} == {
        type(x).__name__: None for x in kernels
    }


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", EQUAL)
def test_gradients_of_a_gpu_are_those_of_the_cpu(name: str, way: str) -> None:
    assert gap(name, way, "cuda") < 1e-3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
def test_a_gpu_steps_with_moments_on_the_host() -> None:
    found = offloaded(torch.device("cuda", 0))
    assert found["gap"] < 1e-5 and found["moments"] == ["cpu"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
