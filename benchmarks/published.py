"""What `mrlm plan` says against rows that others published: facts with their addresses. Constants
of `mrlm.planning.rates` were chosen with the rows marked `seen` in sight, and no others.
`python -m benchmarks.published` prints the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mrlm.config import LoraConfig
from mrlm.planning.devices import find_device
from mrlm.planning.estimate import Estimate, Needs, best, estimate
from mrlm.planning.layout import Place
from mrlm.planning.memory import MemoryLoad
from mrlm.planning.model_shape import known_shape
from mrlm.planning.plan import Plan
from mrlm.planning.policy_weights import WeightSizes
from mrlm.planning.timing import Lengths

GIB, GB = 1 << 30, 1e9
TITAN = "https://github.com/pytorch/torchtitan/blob/main/"
H100 = TITAN + "benchmarks/llama3_h100_202412_torchtitan.md"
A100 = TITAN + "docs/performance.md"
PRIME = "https://github.com/PrimeIntellect-ai/prime-rl/tree/main/benchmarks/baselines"
QWEN = "https://github.com/QwenLM/Qwen (README, profiling of memory and speed)"
QWEN_SPEED = "https://github.com/QwenLM/Qwen2.5/blob/main/docs/source/benchmark/speed_benchmark.rst"
FACTORY = "https://github.com/hiyouga/LLaMA-Factory (README, hardware requirement)"
NEMO = "https://github.com/NVIDIA-NeMo/RL/blob/main/docs/about/performance-summary.md"
SWEEP = "https://johnmusgrave.com/p/vllm-throughput-latency-sweep-on"
BENCH = "https://yobitelcomm.github.io/bench/recipes/concurrency-sweep/"
TENSTORRENT = "https://github.com/tenstorrent/tt-inference-server/issues/340"


@dataclass(frozen=True, slots=True)
class Row:
    """One published number.

    Args:
        what: model, devices and setting.
        published: the number.
        unit: of it.
        predicted: what the plan says.
        source: its address.
        seen: it was looked at while a constant was chosen.
        lacks: what the plan leaves out, where it is more than twice off.
    """

    what: str
    published: float
    unit: str
    predicted: Callable[[], float]
    source: str
    seen: bool = False
    lacks: str = ""

    @property
    def ratio(self) -> float:
        """Predicted over published."""
        return self.predicted() / self.published


def learning(
    model: str,
    device: str,
    devices: int = 1,
    *,
    tokens: int,
    length: int,
    passes: int = 1,
    checkpointing: bool = False,
    rank: int = 0,
    width: int = 4,
    whole_logits: bool = True,
) -> Estimate:
    """A step of supervised learning in which all tokens are trained on.

    Args:
        model, device, devices: of which, and how many.
        tokens: of a micro-batch.
        length: of a sequence.
        passes: micro-batches of each device.
        checkpointing: activations are computed twice.
        rank: of a LoRA adapter; 0 trains all weights.
        width: bytes of a weight.
        whole_logits: all logits of a micro-batch are held at once.
    """
    what = find_device(device)
    nodes = max(1, devices // what.per_node)
    plan = _plan(model, tasks=devices * passes * tokens // length, length=length, rank=rank)
    plan.rows = True
    plan.job = MemoryLoad(
        width=width,
        computed=2,
        tokens=tokens,
        checkpointing=checkpointing,
        lean=not whole_logits,
        plays=False,
    )
    strategy = "fsdp" if devices > 1 else "ddp"
    return estimate(
        plan, Lengths(0, length, length), what, Place(strategy, devices, nodes), Needs()
    )


def sampling(model: str, device: str, rows: int, read: int, written: int) -> float:
    """Tokens per second and row of an engine that decodes so many rows."""
    what = find_device(device)
    plan = _plan(model, tasks=rows, length=read + written)
    plan.weights[0].trainable = False
    plan.job = MemoryLoad(width=2, computed=2, rows=rows, length=read + written)
    lengths = Lengths(read, written, written, engine="vllm")
    found = estimate(plan, lengths, what, Place("ddp", 1), Needs())
    return written / found.seconds["decode"].seconds


def playing(model: str, devices: int, max_lag: int, mean: int, longest: int) -> Estimate:
    """A step of GRPO with 2,048 episodes, an engine for each device, or on devices apart."""
    what = find_device("h100")
    plan = _plan(model, tasks=64, length=150 + longest, samples=32)
    plan.minibatches = 4
    plan.job = MemoryLoad(
        width=2,
        computed=2,
        moments=4,
        tokens=4 * 4096,
        checkpointing=False,
        rows=256,
        length=150 + longest,
    )
    lengths = Lengths(150, mean, longest, engine="vllm" if max_lag else "lean")
    needs = Needs(frozenset({"old_logprobs"}))
    if max_lag:
        return best(plan, lengths, what, "fsdp", devices, devices // 8, needs, max_lag)
    return estimate(plan, lengths, what, Place("fsdp", devices, devices // 8), needs)


def _plan(model: str, tasks: int, length: int, rank: int = 0, samples: int = 1) -> Plan:
    shape = known_shape(model)
    assert shape is not None, model
    lora = LoraConfig(r=rank) if rank else None
    return Plan(
        algorithm="grpo",
        iterations=1,
        tasks=tasks,
        samples=samples,
        agents=1,
        trained_agents=1,
        turns=1,
        rows=False,
        policies=1,
        minibatches=1,
        epochs=1,
        microbatches=1,
        tokens=length,
        weights=[WeightSizes("policy", shape, shape.parameters, "policy", lora)],
    )


def rate(found: Estimate) -> float:
    """Tokens per second and device."""
    return found.trained_tokens / found.step / found.place.devices


def gib(found: Estimate) -> float:
    """Memory of a device, in GiB."""
    return found.needed / GIB


def _titan(**changes: object) -> Callable[[], Estimate]:
    base = {"model": "llama-3.1-8b", "device": "h100", "tokens": 16384, "length": 8192}
    return lambda: learning(**(base | changes))  # pyright: ignore[reportArgumentType]


def _prime(model: str, device: str, devices: int, length: int, rank: int = 0) -> Estimate:
    found = learning(
        model,
        device,
        devices,
        tokens=length,
        length=length,
        passes=2,
        checkpointing=True,
        rank=rank,
        whole_logits=False,
    )
    return found


def _qwen(model: str, length: int) -> Estimate:
    return learning(
        model, "a100", tokens=length, length=length, passes=8, checkpointing=True, rank=64, width=2
    )


RATE, MEMORY = "tokens/s/device", "GiB"
ROWS: list[Row] = [
    Row("8B, 8 H100, FSDP, 2 x 8192", 5762, RATE, lambda: rate(_titan(devices=8)()), H100, True),
    Row("the same", 82.4, MEMORY, lambda: gib(_titan(devices=8)()), H100),
    Row("8B, 128 H100, FSDP, 2 x 8192", 5605, RATE, lambda: rate(_titan(devices=128)()), H100),
    Row("the same", 67.0, MEMORY, lambda: gib(_titan(devices=128)()), H100),
    Row(
        "8B, 64 A100, FSDP, 8192",
        2904,
        RATE,
        lambda: rate(_titan(device="a100", devices=64, tokens=8192)()),
        A100,
        True,
    ),
    Row(
        "13B, 64 A100, FSDP, 2 x 4096",
        2162,
        RATE,
        lambda: rate(
            _titan(model="llama-2-13b", device="a100", devices=64, tokens=8192, length=4096)()
        ),
        A100,
        True,
    ),
    Row(
        "70B, 64 A100, FSDP, 8192, checkpointing",
        331,
        RATE,
        lambda: rate(
            _titan(
                model="llama-3-70b", device="a100", devices=64, tokens=8192, checkpointing=True
            )()
        ),
        A100,
        True,
    ),
    Row(
        "0.6B, 1 H100, RL, 16384",
        11896,
        RATE,
        lambda: rate(_prime("qwen3-0.6b", "h100", 1, 16384)),
        PRIME,
        True,
    ),
    Row("the same", 12.5, MEMORY, lambda: gib(_prime("qwen3-0.6b", "h100", 1, 16384)), PRIME),
    Row(
        "0.6B, 1 H100, RL, 65536",
        10147,
        RATE,
        lambda: rate(_prime("qwen3-0.6b", "h100", 1, 65536)),
        PRIME,
        True,
    ),
    Row("the same", 19.6, MEMORY, lambda: gib(_prime("qwen3-0.6b", "h100", 1, 65536)), PRIME),
    Row(
        "0.6B, 1 A6000, RL, 65536",
        2719,
        RATE,
        lambda: rate(_prime("qwen3-0.6b", "a6000", 1, 65536)),
        PRIME,
        True,
    ),
    Row(
        "4B, 8 H100, RL, 16384",
        3253,
        RATE,
        lambda: rate(_prime("qwen3-4b", "h100", 8, 16384)),
        PRIME,
        lacks="shards that wait: ours are taken to travel under the products",
    ),
    Row("the same", 17.1, MEMORY, lambda: gib(_prime("qwen3-4b", "h100", 8, 16384)), PRIME),
    Row(
        "8B, 8 B200, RL, LoRA, 16384",
        8251,
        RATE,
        lambda: rate(_prime("llama-3.1-8b", "b200", 8, 16384, 16)),
        PRIME,
        True,
    ),
    Row("the same", 16.6, MEMORY, lambda: gib(_prime("llama-3.1-8b", "b200", 8, 16384, 16)), PRIME),
    Row("7B, 1 A100, LoRA, 8 x 1024", 2.8, "s", lambda: _qwen("qwen-7b", 1024).step, QWEN),
    Row("the same", 21.5, "GB", lambda: _qwen("qwen-7b", 1024).needed / GB, QWEN),
    Row("7B, 1 A100, LoRA, 8 x 8192", 21.3, "s", lambda: _qwen("qwen-7b", 8192).step, QWEN),
    Row("the same", 36.6, "GB", lambda: _qwen("qwen-7b", 8192).needed / GB, QWEN),
    Row("14B, 1 A100, LoRA, 8 x 4096", 17.0, "s", lambda: _qwen("qwen-14b", 4096).step, QWEN),
    Row("the same", 42.5, "GB", lambda: _qwen("qwen-14b", 4096).needed / GB, QWEN),
    Row(
        "7B, full, weights in fp32",
        120,
        "GB",
        lambda: (
            learning("qwen2.5-7b", "h100", tokens=1024, length=1024, checkpointing=True).needed / GB
        ),
        FACTORY,
    ),
    Row(
        "7B, full, all in bf16",
        60,
        "GB",
        lambda: (
            learning(
                "qwen2.5-7b", "h100", tokens=1024, length=1024, checkpointing=True, width=2
            ).needed
            / GB
        ),
        FACTORY,
    ),
    Row(
        "7B, LoRA",
        16,
        "GB",
        lambda: (
            learning(
                "qwen2.5-7b", "h100", tokens=512, length=512, checkpointing=True, rank=8, width=2
            ).needed
            / GB
        ),
        FACTORY,
    ),
    Row(
        "8B, 1 A100, 1 row",
        75,
        "tokens/s",
        lambda: sampling("llama-3.1-8b", "a100-40gb", 1, 1024, 128),
        SWEEP,
        True,
    ),
    Row(
        "8B, 1 H100, 1 row",
        1000 / 6.48,
        "tokens/s",
        lambda: sampling("llama-3.1-8b", "h100", 1, 256, 128),
        BENCH,
        True,
    ),
    Row(
        "8B, 1 H100, 16 rows, each",
        1000 / 10.94,
        "tokens/s",
        lambda: sampling("llama-3.1-8b", "h100", 16, 256, 128),
        BENCH,
    ),
    Row(
        "0.5B, 1 A100, 1 row",
        311.6,
        "tokens/s",
        lambda: sampling("qwen2.5-0.5b", "a100", 1, 1, 2048),
        QWEN_SPEED,
        True,
    ),
    Row(
        "1.5B, 1 A100, 1 row",
        183.3,
        "tokens/s",
        lambda: sampling("qwen2.5-1.5b", "a100", 1, 1, 2048),
        QWEN_SPEED,
        True,
    ),
    Row(
        "7B, 1 A100, 1 row",
        84.3,
        "tokens/s",
        lambda: sampling("qwen2.5-7b", "a100", 1, 1, 2048),
        QWEN_SPEED,
    ),
    Row(
        "14B, 1 A100, 1 row",
        46.3,
        "tokens/s",
        lambda: sampling("qwen2.5-14b", "a100", 1, 1, 2048),
        QWEN_SPEED,
    ),
    Row(
        "0.6B, 1 A100, 1 row",
        238,
        "tokens/s",
        lambda: sampling("qwen3-0.6b", "a100", 1, 128, 128),
        TENSTORRENT,
        True,
    ),
    Row(
        "8B, 16 H100, GRPO, 2048 episodes",
        97.7,
        "s",
        lambda: playing("llama-3.1-8b", 16, 0, 910, 4096 - 150).step,
        NEMO,
    ),
    Row(
        "the same, one step ahead",
        74.6,
        "s",
        lambda: playing("llama-3.1-8b", 16, 1, 980, 4096 - 150).step,
        NEMO,
    ),
]


def table() -> str:
    """Rows of Markdown."""
    lines = ["| row | published | planned | ratio | |", "| --- | --- | --- | --- | --- |"]
    for row in ROWS:
        word = row.lacks or ("seen" if row.seen else "")
        lines.append(
            f"| {row.what} | {row.published:,.4g} {row.unit} | {row.predicted():,.4g} "
            f"| {row.ratio:.2f} | {word} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
