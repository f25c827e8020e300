"""The lean engine on an accelerator: the same completions, nothing that waits for the device in a
step, no tensor of the square of a prompt, and keys and values within a budget."""

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from forking import Launcher
from lean_engines import adapters, ask, assert_lean, assert_same, build, engines, generate, mixed
from mrlm.core.errors import EngineError
from mrlm.core.types import SamplingParams
from mrlm.engines.hf import HFEngine
from mrlm.engines.lean import attention, decoder, fixed_batch, fixed_blocks, flash_decode, prompts
from mrlm.engines.lean.decoder import Decoder
from mrlm.engines.lean.engine import LeanEngine
from mrlm.engines.lean.flash_decode import Sequences
from mrlm.engines.lean.memory import Fresh, Lasting
from mrlm.engines.lean.prompts import Prompts
from mrlm.engines.shared.sampling import BLOCK, sample, sample_in_blocks
from mrlm.learn.fast.llama_modules import anatomy_of
from mrlm.learn.policy.policy import Policy
from mrlm.learn.policy.randomness import GENERATORS
from mrlm.play.engine import Request
from places import IMPORTS, ROOT

pytestmark = pytest.mark.system

HERE = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
KERNELS = {"llama": 28, "qwen3": 28, "gemma2": 40, "mixed": 32}
"""Most kernels of a layer and step: in float32, twice in bfloat16, where norms of Gemma are in
float32, and in bfloat16 with weights in float32."""
REST = 84
"""Most kernels of embedding, masks, head and sampling."""
MOVED = 32
"""Most bytes of a token that cross between host and device: a random number, the token (twice), its
log-prob, and the state of its row, which is read every eight steps."""


def test_nothing_waits_within_a_step(launcher: Launcher, tmp_path: Path, tiny_path: str) -> None:
    """On the fake accelerator: the same completions, as many waits for 112 tokens as for 48, few
    kernels, and few bytes."""
    program = str(ROOT / "tests" / "helpers" / "accelerated_engine.py")
    words = [program, tiny_path, "gemma2"]
    done = launcher.run(words, tmp_path, PYTHONPATH=IMPORTS)
    assert done.code == 0, done.err[-3000:]
    found = json.loads(done.out.splitlines()[-1])
    short, long = found["tokens"]
    assert long["waits"] == short["waits"] < 30
    steps = long["steps"] - short["steps"]
    assert steps == 64
    assert 8 < (long["moved"] - short["moved"]) / (8 * steps) <= MOVED
    short, long = found["general"]
    waits = (long["waits"] - short["waits"]) / (long["steps"] - short["steps"])
    assert waits <= 1, "transformers looks at the mask once a token; the general engine at nothing"
    for family, step in found["steps"].items():
        assert 20 < step["layer"] <= KERNELS[family], found
        assert 30 < step["rest"] <= REST, found
        assert step["waits"] == 0, found
        # of 8 rows: scores over 64 + 128 columns in three copies, and small states
        assert step["bytes"] < 8 * 4 * 4 * (4 * 192 + 16 * 64), found


@pytest.mark.parametrize("size", [1, 5, BLOCK, BLOCK + 1, 5000, 3 * 128])
def test_sampling_in_blocks_draws_the_same_tokens(size: int) -> None:
    """Also at both ends of the uniform numbers, and never a token that is masked."""
    logits = torch.randn(300, size) * 5
    if size > 1:
        logits[:, torch.randperm(size)[: size // 2]] = -torch.inf
    uniforms = torch.rand(300, dtype=torch.float64)
    uniforms[:2] = torch.tensor([0.0, 1 - 2**-40], dtype=torch.float64)
    greedy = torch.arange(300) % 7 == 0
    for given in (None, greedy):
        tokens, logprobs = sample_in_blocks(logits, uniforms, given)
        expected, theirs = sample(logits, uniforms, given)
        assert torch.equal(tokens, expected)
        torch.testing.assert_close(logprobs, theirs, atol=1e-5, rtol=1e-5)
    _, logprobs = sample_in_blocks(logits, torch.full_like(uniforms, 1 - 2**-53))
    assert torch.isfinite(logprobs).all()


def test_logits_in_16_bits_are_sampled_as_they_are() -> None:
    logits = (torch.randn(50, 999) * 5).bfloat16()
    uniforms = torch.rand(50, dtype=torch.float64)
    tokens, logprobs = sample_in_blocks(logits, uniforms)
    expected, theirs = sample(logits.float(), uniforms)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(logprobs, theirs, atol=1e-5, rtol=1e-5)


# -- flash attention of a step -------------------------------------------------------------------


def written_out(
    queries: Tensor, keys: Tensor, values: Tensor, sequences: Sequences, scale: float
) -> tuple[Tensor, Tensor]:
    """What the kernel computes, sequence by sequence."""
    ends, starts, used = (each.tolist() for each in sequences[:3])
    assert len(ends) == len(starts) == len(used) + 1 and ends[-1] == len(queries)
    assert keys.shape[1:] == values.shape[1:] == (1, queries.shape[-1])
    found, totals = torch.zeros_like(queries), torch.zeros(queries.shape[1], len(queries))
    for number, (first, size) in enumerate(zip(starts, used, strict=False)):
        here, there = slice(*ends[number : number + 2]), slice(first, first + size)
        assert ends[number + 1] - ends[number] <= sequences.longest[0] and first + size <= len(keys)
        assert size <= sequences.longest[1]
        if not size:  # a place without a prompt
            totals[:, here] = torch.inf
            continue
        scores = queries[here].float() @ keys[there, 0].float().t() * scale
        found[here] = (scores.softmax(-1) @ values[there, 0].float()).to(queries.dtype)
        totals[:, here] = scores.logsumexp(-1).t()
    return found, totals


WIDE = {"sliding_window": 4096}


@pytest.mark.parametrize(("family", "sizes", "uses", "rows"), [
    ("llama", {}, True, 256), ("llama", {}, True, 5), ("mistral", WIDE, True, 5),
    ("mistral", {}, False, 256), ("gemma2", WIDE, False, 256),
])  # fmt: skip
def test_a_step_with_flash_attention_samples_the_same(
    family: str,
    sizes: dict[str, Any],
    uses: bool,
    rows: int,
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With prompts that rows share or not, and rows that begin later. It has no soft cap, and no
    window that hides something."""
    calls: list[int] = []

    def look(*given: Any) -> tuple[Tensor, Tensor]:
        calls.append(len(given[0]))
        return written_out(*given)

    policy = Policy("policy", build(family, **sizes), tokenizer)
    requests = [*mixed(), *(ask([7, 8, 9], seed, max_new_tokens=30) for seed in range(7))]
    expected = generate(LeanEngine({"policy": policy}), requests)
    monkeypatch.setattr(decoder, "PROCESSORS", set())
    monkeypatch.setattr(fixed_blocks, "serves", lambda *_: True)
    monkeypatch.setattr(fixed_blocks, "look", look)
    engine = LeanEngine({"policy": policy}, batch_size=rows)
    for _ in range(2):
        assert_same(generate(engine, requests), expected)
    assert_lean(engine)
    assert (len(calls) > 100) == uses


def test_an_example_tells_whether_flash_attention_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, half = torch.device("cpu"), torch.bfloat16
    assert not flash_decode.serves(cpu, half, 2, 16)
    assert "Error" in str(flash_decode.disagreement(cpu, half, 2, 16))
    monkeypatch.setattr(flash_decode, "look", written_out)
    assert flash_decode.disagreement(cpu, half, 2, 16) is None

    def other_order(*given: Any) -> tuple[Tensor, Tensor]:
        found, total = written_out(*given)
        return found, total.flip(1)

    def one_key_more(*given: Any) -> tuple[Tensor, Tensor]:
        return written_out(*given[:3], given[3]._replace(used=given[3].used + 1), given[4])

    for wrong in (other_order, one_key_more):
        monkeypatch.setattr(flash_decode, "look", wrong)
        assert "differs by" in str(flash_decode.disagreement(cpu, half, 2, 16))


# -- prefill ---------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """Records the largest tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in pytree.tree_leaves(found):
            if isinstance(each, torch.Tensor):
                size = each.untyped_storage().nbytes() if each.device.type == "meta" else 0
                self.bytes = max(self.bytes, size)
        return found


def prefill(length: int, family: str, softcap: bool = False) -> int:
    """Bytes of the largest tensor when a prompt is prefilled on the meta device, with 1000 cached
    tokens."""
    sizes = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 64, "head_dim": 8}
    model = build(family, **sizes).to("meta")
    found = Decoder(anatomy_of(model), torch.float32, compared=False)
    found.refresh()
    shape = (len(found.windows), 2 * found.kv_heads, found.head_dim)
    pool = torch.empty(1000, *shape, device="meta")
    block = Prompts(found, Lasting(found.dtype, found.device))
    text = np.arange(length) % 200
    with Largest() as largest:
        block.read([0], [text], np.zeros(1), [np.arange(1000)], pool, None)
    assert block.size == (1, length)
    return largest.bytes


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_prompt_takes_memory_by_its_length_and_not_its_square(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written out, 16k tokens and 32 heads have scores of 34 GB."""
    monkeypatch.setattr(attention, "SCORES", 1 << 25)
    quarter, whole = (prefill(length, family) for length in (4096, 16384))
    assert whole <= 4.1 * quarter
    assert whole <= 4 << 25


@pytest.mark.parametrize("family", ["llama", "gemma3", "gemma2"])
def test_a_prompt_in_pieces_and_blocks_reads_the_same(
    family: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of 16 tokens and few queries at once, after a cached prefix or none."""
    policy = Policy("policy", build(family), tokenizer)
    rng = np.random.default_rng(2)
    texts = [rng.integers(3, 259, n).tolist() for n in (70, 33, 5)]
    texts.append([*texts[0], *rng.integers(3, 259, 50).tolist()])
    requests = [ask(text, seed, max_new_tokens=6) for seed, text in enumerate(texts)]
    expected = generate(LeanEngine({"policy": policy}), requests)
    monkeypatch.setattr(decoder, "PROCESSORS", set())
    monkeypatch.setattr(prompts, "PIECE", 16)
    monkeypatch.setattr(attention, "SCORES", 2000)
    monkeypatch.setattr("mrlm.engines.lean.batch.PREFILL", 40)
    engine = LeanEngine({"policy": policy})
    for _ in range(2):
        assert_same(generate(engine, requests), expected)
    assert engine.stats.cached > 100
    assert_lean(engine)


# -- memory ----------------------------------------------------------------------------------------


class Peak(TorchDispatchMode):
    """Records the most bytes of living tensors that were made meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._living: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in pytree.tree_leaves(found):
            if isinstance(each, torch.Tensor) and not each.is_mkldnn:
                storage = each.untyped_storage()
                living = StorageWeakRef(storage)
                self._living[living.cdata] = living, storage.nbytes()
        self._living = {at: pair for at, pair in self._living.items() if not pair[0].expired()}
        self.bytes = max(self.bytes, sum(size for _, size in self._living.values()))
        return found


@pytest.mark.parametrize("fixed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rows_wait_for_memory(fixed: bool, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen rows with prompts of many lengths in a budget for a few: equal completions, and a
    peak within the budget."""
    model = build("llama", num_key_value_heads=4, head_dim=128)
    policy = Policy("policy", model, tokenizer)
    rng = np.random.default_rng(4)
    requests = [
        Request("policy", rng.integers(3, 259, 10 + 14 * i).tolist(), SamplingParams(30), i)
        for i in range(16)
    ]
    if fixed:
        monkeypatch.setattr(decoder, "PROCESSORS", set())
    peaks, found = [], []
    for mib in (None, 12):
        engine = LeanEngine({"policy": policy}, cache_mib=0, unseen_writes=False, kv_mib=mib)
        generate(engine, requests[:1])  # copies of the weights
        with Peak() as peak:
            found.append(engine._generate(requests))
        assert_lean(engine)
        peaks.append(peak.bytes / 2**20)
    assert_same(found[1], found[0])
    assert peaks[1] < 12 + 4 < 36 < peaks[0], "4 MiB for everything but keys and values"


def test_a_request_without_a_place_is_named(tokenizer: Any) -> None:
    _, lean = engines(Policy("policy", build("llama"), tokenizer), kv_mib=1)
    generate(lean, [ask([5, 6])])
    with pytest.raises(EngineError, match=r"one request \(9000 tokens .* raise engine.kv_mib"):
        generate(lean, [ask([5] * 9000)])


def test_memory_of_steps_is_released_for_learning(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    monkeypatch.setattr(decoder, "PROCESSORS", set())
    _, lean = engines(Policy("policy", build("llama"), tokenizer))
    expected = generate(lean, mixed(1))
    (base,) = lean._bases.values()
    layout = base.memory.layout
    assert base.memory.held > 0
    assert_same(generate(lean, mixed(1)), expected)
    assert base.memory.layout == layout, "equal calls find their memory where it was"
    asyncio.run(lean.rest())
    assert base.memory.held == 0
    assert not any([*base.decoder.products, *base.decoder.norms]), "copies of weights"
    cached = lean.stats.cached
    assert_same(generate(lean, mixed(1)), expected)
    assert lean.stats.cached > cached, "weights that did not change keep the prefix cache"
    adapted = LeanEngine(adapters(build("llama"), tokenizer))
    expected = generate(adapted, mixed(1, "two"))
    asyncio.run(adapted.rest())
    assert_same(generate(adapted, mixed(1, "two")), expected)


def test_lasting_memory_stays_where_it_is() -> None:
    memory = Lasting(torch.float32, torch.device("cpu"))
    first = memory.take("a", 2, 8)
    assert memory.take("a", 3, 5).data_ptr() == first.data_ptr() and memory.layout == 1
    assert memory.take("a", 4, 5).numel() == 20 and memory.layout == 2
    fresh = Fresh(torch.float32, torch.device("cpu"))
    assert fresh.take("a", 2).data_ptr() != fresh.take("a", 2).data_ptr() or not fresh.held


def test_new_weights_are_written_where_recorded_steps_read_them(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "PROCESSORS", set())
    monkeypatch.setattr("mrlm.learn.fast.matmul.onednn_is_exact", lambda: False)
    general, lean = engines(Policy("policy", build("llama"), tokenizer))
    generate(lean, [ask([5, 6, 7], 1), ask([5, 6, 7], 2)])
    (base,) = lean._bases.values()
    layout, fused = base.decoder.layout, base.decoder.products[0]["qkv"].weight
    before = fused.clone()
    with torch.no_grad():
        for weight in lean.policies["policy"].parameters():
            weight.mul_(1.1)
    requests = [ask([5, 6, 7], seed) for seed in range(4)]
    assert_same(generate(lean, requests), generate(general, requests))
    assert base.decoder.products[0]["qkv"].weight is fused and base.decoder.layout == layout
    assert not torch.equal(fused, before)


# -- recorded steps, with a CUDA that only writes down its calls -----------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked of CUDA."""
    found: list[Any] = []

    class Graph:
        def replay(self) -> None:
            found.append("replay")

    @contextmanager
    def graph(graph: Any, **how: Any) -> Iterator[None]:
        found.append(how)
        yield

    @contextmanager
    def device(which: torch.device) -> Iterator[None]:
        found.append(which)
        yield

    fakes = {"CUDAGraph": Graph, "graph": graph, "Stream": lambda which: ("stream", which)}
    fakes |= {"graph_pool_handle": lambda: "pool", "device": device}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return found


def graphs(number: int) -> fixed_batch.Graphs:
    decoder: Any = SimpleNamespace(device=torch.device("cuda", number), layout=0)
    memory: Any = SimpleNamespace(layout=0)
    return fixed_batch.Graphs(decoder, memory)


def test_a_step_is_recorded_on_a_stream_of_its_own_device(calls: list[Any]) -> None:
    """Torch's own stream for it belongs to the device that was recorded on first. Other threads may
    allocate meanwhile."""
    steps: list[int] = []
    for number in (1, 3):
        found = graphs(number)
        for _ in range(4):
            found.run("form", lambda: steps.append(1))
        stream = ("stream", torch.device("cuda", number))
        mode = "thread_local"
        how = {"pool": "pool", "stream": stream, "capture_error_mode": mode}
        assert calls == [how, "replay", "replay"]
        assert len(steps) == 3, "two in order to load kernels, and the recorded one"
        found.memory.layout += 1  # addresses that the graph reads have moved
        found.run("form", lambda: steps.append(1))
        assert len(steps) == 4 and calls[-1] == "replay" and len(calls) == 3
        calls.clear()
        steps.clear()


def test_a_step_is_not_recorded_while_another_thread_draws(calls: list[Any]) -> None:
    steps: list[int] = []
    found = graphs(0)
    with GENERATORS.drawing():
        for _ in range(5):
            found.run("form", lambda: steps.append(1))
    assert len(steps) == 5 and not calls
    found.run("form", lambda: steps.append(1))
    found.run("form", lambda: steps.append(1))
    assert len(steps) == 6 and calls[1:] == ["replay", "replay"]


def test_a_batch_makes_its_device_the_current_one(calls: list[Any]) -> None:
    """Threads begin with the first device, to which events and pinned memory would belong."""
    third = torch.device("cuda", 3)
    batch: Any = SimpleNamespace(device=third, _run=lambda: calls.append("run"))
    fixed_batch.FixedBatch.run(batch)
    batch.device = torch.device("cpu")
    fixed_batch.FixedBatch.run(batch)
    assert calls == [third, "run", "run"]


# -- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.gpu
@HERE
@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "mistral"])
@pytest.mark.parametrize("rows", [256, 5])
def test_recorded_steps_say_what_the_cpu_says(family: str, rows: int, tokenizer: Any) -> None:
    """Log-probs to 1e-4 of what float32 computes; where two tokens are that close, another one."""
    expected = generate(LeanEngine({"policy": Policy("policy", build(family), tokenizer)}), mixed())
    policy = Policy("policy", build(family).to("cuda"), tokenizer)
    engine = LeanEngine({"policy": policy}, batch_size=rows)
    for _ in range(2):
        found = generate(engine, mixed())
        alike = [a.token_ids == b.token_ids for a, b in zip(found, expected, strict=True)]
        assert np.mean(alike) > 0.9
        for one, other, same in zip(found, expected, alike, strict=True):
            if same:
                assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)
    assert_lean(engine)
    (base,) = engine._bases.values()
    assert base.graphs._graphs, "steps were recorded"


@pytest.mark.gpu
@HERE
@pytest.mark.parametrize("group", [1, 7])
@pytest.mark.parametrize("head", [64, 128, 256])
def test_flash_attention_of_a_step_agrees(head: int, group: int) -> None:
    device = torch.device("cuda", 0)
    assert flash_decode.disagreement(device, torch.bfloat16, group, head) is None
    assert flash_decode.serves(device, torch.bfloat16, group, head)


@pytest.mark.gpu
@HERE
@pytest.mark.parametrize(("family", "sizes"), [("llama", {}), ("mistral", WIDE)])
@pytest.mark.parametrize("rows", [256, 5])
def test_steps_in_16_bits_are_those_without_flash_attention(
    family: str, sizes: dict[str, Any], rows: int, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probs of one text by either way, up to rounding of bfloat16."""
    policy = Policy("policy", build(family, **sizes).to("cuda", torch.bfloat16), tokenizer)
    requests = [*mixed(), *(ask([7, 8, 9], seed, max_new_tokens=60) for seed in range(40))]
    found = [generate(LeanEngine({"policy": policy}, batch_size=rows), requests)]
    monkeypatch.setattr(fixed_blocks, "serves", lambda *_: False)
    engine = LeanEngine({"policy": policy}, batch_size=rows)
    found.append(generate(engine, requests))
    assert_lean(engine)
    for one, other in zip(*found, strict=True):
        pairs = zip(one.token_ids, other.token_ids, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        assert one.logprobs[:same] == pytest.approx(other.logprobs[:same], abs=0.1)
    alike = [one.token_ids[:4] == other.token_ids[:4] for one, other in zip(*found, strict=True)]
    assert np.mean(alike) > 0.8


@pytest.mark.gpu
@HERE
@pytest.mark.parametrize("rows", [256, 5])
def test_the_general_engine_says_on_a_gpu_what_the_cpu_says(rows: int, tokenizer: Any) -> None:
    expected = generate(HFEngine({"policy": Policy("policy", build("llama"), tokenizer)}), mixed())
    policy = Policy("policy", build("llama").to("cuda"), tokenizer)
    found = generate(HFEngine({"policy": policy}, rows), mixed())
    alike = [a.token_ids == b.token_ids for a, b in zip(found, expected, strict=True)]
    assert np.mean(alike) > 0.9


@pytest.mark.gpu
@HERE
@pytest.mark.parametrize("meanwhile", ["a learner draws", "another thread allocates"])
def test_a_step_is_recorded_while(meanwhile: str, tokenizer: Any) -> None:
    """With dropout, whose random numbers torch refuses while another thread records."""
    import threading

    stop, failed = threading.Event(), []
    drop = torch.nn.Dropout(0.5)

    def work() -> None:
        try:
            while not stop.is_set():
                if meanwhile == "another thread allocates":
                    torch.empty(1 << 20, device="cuda").zero_()
                    continue
                with GENERATORS.drawing():
                    drop(torch.ones(1000, device="cuda"))
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        engine = LeanEngine({"policy": Policy("policy", build("llama").to("cuda"), tokenizer)})
        for seed in range(3):
            generate(engine, [ask([5, 6, 7 + seed], i, max_new_tokens=40) for i in range(8)])
    finally:
        stop.set()
        thread.join()
    assert not failed
    assert_lean(engine)


@pytest.mark.gpu
@HERE
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_long_prompt_fits_on_a_gpu(dtype: torch.dtype, tokenizer: Any) -> None:
    """16k tokens and 32 heads: the peak grows with the length."""
    sizes = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 512}
    long = {"head_dim": 64, "max_position_embeddings": 20000}
    model = build("llama", **sizes, **long).to("cuda", dtype)
    engine = LeanEngine({"policy": Policy("policy", model, tokenizer)}, cache_mib=0)
    generate(engine, [ask([5, 6, 7])])
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    generate(engine, [ask([5, 6, 7, 8] * 4096, max_new_tokens=4)])
    assert torch.cuda.max_memory_allocated() - before < 4 << 30
    assert_lean(engine)


@pytest.mark.gpu
@HERE
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_nothing_waits_for_a_gpu_between_looks(dtype: torch.dtype, tokenizer: Any) -> None:
    """Torch itself fails on a wait inside of a step."""
    policy = Policy("policy", build("llama").to("cuda", dtype), tokenizer)
    engine = LeanEngine({"policy": policy})
    step = fixed_batch.FixedBatch.step

    def strict(self: Any) -> None:
        torch.cuda.set_sync_debug_mode("error")
        try:
            step(self)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixed_batch.FixedBatch, "step", strict)
        generate(engine, mixed())
    assert_lean(engine)
