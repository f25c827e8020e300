"""Memory of a step, part by part: permanent parts, those of training, and those of sampling. The
latter two are never needed at the same time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mrlm.planning.model_shape import ModelShape
from mrlm.planning.policy_weights import WeightSizes

BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}
"""Bytes of one weight; `auto` counts as 16 bit, the usual type of saved models."""
QUANTIZED: dict[str, float] = {"nf4": 0.5 + 1 / 64 + 4 / (64 * 256), "int8": 1.0}
"""The same of a linear map that is kept in 4 or 8 bits; in 4 bits 64 weights have a number in 8
bits, 256 of which have one in 32."""
WHOLE = 4
"""Bytes of a float32 number."""
ADAPTER_BYTES = 4
"""Bytes of an adapter's weight: PEFT keeps adapters in float32 on a base of any type."""
CELLS, LEAST_ROWS = 1 << 22, 256
"""Approximate number of logits that the library's own head computes at once on a CPU, and its least
number of tokens (see `learn/fast/lm_head.py`)."""
MOST_TOKENS, LEAST_TOKENS = 16_384, 256
"""Most and least tokens of a micro-batch that memory determines."""
LOGIT_BYTES = 2 << 30
"""Most bytes of the logits on an accelerator, of whose memory they take a 64th."""
COPIES_OF_LOGITS = {True: 3, False: 2}
"""The logits in float32 and their gradient, and in the library's own head their exponentials."""
OFFLOADED = 1 << 26
"""Weights whose moments are on a device at the same time, if the host keeps them (see
`learn/adam.py`)."""
LEARNING = ("activations", "logits", "casts", "gathered", "moments")
"""Parts that exist only during training."""
COPIES = "copies"
"""The weights in the layout of the engine, where it releases them for training."""
PLAYING = ("kv_cache", COPIES)
"""Parts that exist only during sampling."""
REDUCING = ("buckets",)
"""Parts that exist only while gradients are reduced."""
PASSING = (*LEARNING, *PLAYING, *REDUCING)

MEMORY = (
    "memory = weights N*b (a base under several adapters once; its linear maps with "
    "model.quantization=nf4 .516 bytes each, with int8 1) + adapter A*4 + gradients T*b + "
    "optimizer 2*T*b (adam; with training.optimizer_offload on the host, and those of some weights "
    "during a step; trained weights in 16 bits also have masters T*4, and their optimizer takes "
    "2*T*4) + reference N*b + critic (its weights, gradients and optimizer) + opponents "
    "(copies at once) + activations M*c*layers*(6*hidden + 3*query_width + 2*kv_width + "
    "3*intermediate; on a GPU 4*hidden + 2*query_width, less the gradients if a step is one "
    "micro-batch) + logits of a chunk + casts (weights in the type they are computed in; on a "
    "GPU of a block and of the head; of quantised ones a block, on a CPU one map) + kv_cache "
    "rows*tokens*2*kv_width*layers*c (rows of a step or, on a CPU, of a larger evaluation; those "
    "that do not fit into engine.kv_mib, by default 80 % of what a GPU has free, wait) + prefixes "
    "of at most engine.cache_mib; N weights, T trained ones, A those of an adapter, b and c bytes "
    "of a weight and of a computed value, M tokens of a micro-batch. The temporary memory of "
    "training and sampling is not needed at the same time"
)

Parts = dict[str, int]


@dataclass(frozen=True, slots=True)
class MemoryLoad:
    """The inputs of the memory estimate besides weights.

    Args:
        width: bytes of a weight.
        computed: bytes of a computed value.
        masters: whether trained weights have float32 copies.
        moments: numbers that the optimizer keeps for each trained weight.
        tokens: tokens of a micro-batch.
        checkpointing: whether activations of a block are recomputed instead of kept.
        lean: whether the library's own forward pass is used, whose head never holds all logits.
        plays: whether episodes are sampled on this device, by an engine in the same process.
        rows: sequences that are decoded at once, over all agents.
        length: tokens of the longest of them.
        kept: bytes of the engine's prefix cache.
        most_keys: most bytes of keys and values of running rows; further rows wait.
        offloaded: whether the moments are in the host's memory.
        accelerated: whether the device is not a CPU.
        quantization: how the linear maps of bases are kept, if quantised.
        once: whether a step is one micro-batch.
    """

    width: int = 4
    computed: int = 4
    masters: bool = False
    moments: int = 2
    tokens: int = 16_384
    checkpointing: bool = False
    lean: bool = True
    plays: bool = True
    rows: int = 0
    length: int = 0
    kept: int = 0
    most_keys: int | None = None
    offloaded: bool = False
    agents: int = 1
    accelerated: bool = False
    quantization: str | None = None
    once: bool = False


def parts_of(
    weights: WeightSizes, job: MemoryLoad, shards: int = 1, reduces: bool = False
) -> Parts:
    """Bytes of one policy on one device, by part.

    Args:
        job: the inputs besides weights.
        shards: devices that share the trained weights and their states.
        reduces: whether whole gradients are reduced over devices, in buckets.
    """
    width, shape = job.width, weights.shape
    bytes_each = ADAPTER_BYTES if weights.lora is not None else width
    parts: Parts = {"weights": model_bytes(weights, job) // shards if weights.owns else 0}
    if weights.lora is not None:
        parts["adapter"] = weights.adapter * bytes_each // shards
    if weights.trainable:
        parts["gradients"] = weights.trained * bytes_each // shards
        updated = updated_bytes(weights, job)
        if updated != bytes_each:
            parts["masters"] = weights.trained * updated // shards
        if not job.offloaded:
            parts["optimizer"] = job.moments * weights.trained * updated // shards
        else:
            parts["moments"] = job.moments * min(weights.trained, OFFLOADED) * updated
        if reduces:
            parts["buckets"] = 4 * weights.trained  # in float32
        if weights.reference:
            adapter = weights.lora is not None and weights.reference < weights.count
            parts["reference"] = weights.reference * (ADAPTER_BYTES if adapter else width)
        if weights.critic:
            wide = bytes_each if weights.critic == weights.trained else width
            updated = WHOLE if job.masters else wide
            moments = 0 if job.offloaded else job.moments * updated
            learned = wide + moments + (updated if updated != wide else 0)
            learned = learned if weights.critic_learns else 0
            parts["critic"] = weights.critic * (wide + learned) // shards
    if weights.num_opponents:
        parts["opponents"] = weights.num_opponents * weights.trained * bytes_each
    if shape is not None:
        parts |= _passing(weights, shape, job, shards)
        if job.accelerated and job.once and weights.trainable:  # gradients come as they go
            parts["activations"] = max(0, parts["activations"] - parts["gradients"])
    return parts


def model_bytes(weights: WeightSizes, job: MemoryLoad) -> int:
    """Bytes of the weights of a policy's model."""
    if job.quantization is None:
        return weights.count * job.width
    maps = weights.count if weights.shape is None else weights.shape.body
    return (weights.count - maps) * job.width + round(maps * QUANTIZED[job.quantization])


def peak(memory: Mapping[str, Mapping[str, int]]) -> int:
    """Peak bytes of all policies: they train one after another, and sampling has ended by then."""
    learning = max((_sum(parts, LEARNING) for parts in memory.values()), default=0)
    learning = max(learning, *(_sum(parts, REDUCING) for parts in memory.values()), 0)
    playing = sum(_sum(parts, PLAYING) for parts in memory.values())
    everything = sum(sum(parts.values()) for parts in memory.values())
    passing = sum(_sum(parts, PASSING) for parts in memory.values())
    return everything - passing + max(learning, playing)


def activations(
    shape: ModelShape, tokens: int, computed: int, checkpointing: bool = False, fused: bool = False
) -> int:
    """Bytes that a forward pass keeps for its backward pass: the inputs of the products, norms,
    attention and the gate of a block, as counted in `learn/fast/forward.py` (arXiv 2205.05198,
    eq. 1, without the attention matrix); with `fused`, in the kernels of an accelerator."""
    hidden, queries = (4, 2) if fused else (6, 3)
    block = hidden * shape.hidden + queries * shape.query_width
    block += 2 * shape.kv_width + 3 * shape.intermediate
    if checkpointing:
        return tokens * computed * (block + shape.hidden * shape.layers)
    return tokens * computed * block * shape.layers


def logits(shape: ModelShape, tokens: int, lean: bool, accelerated: bool = False) -> int:
    """Bytes of the logits that exist at the same time."""
    row_bytes = COPIES_OF_LOGITS[lean] * 4 * shape.vocab
    if lean and accelerated:
        tokens = min(tokens, max(LEAST_ROWS, LOGIT_BYTES // row_bytes))
    elif lean:
        tokens = min(tokens, max(LEAST_ROWS, CELLS // shape.vocab))
    return row_bytes * tokens


def tokens_in(
    size: float, shape: ModelShape, computed: int, checkpointing: bool = False, lean: bool = True
) -> int:
    """The tokens of a micro-batch whose activations and logits take at most `size` bytes: a power
    of two, so that a little more or less memory changes nothing, from `LEAST_TOKENS` to
    `MOST_TOKENS`."""
    tokens = MOST_TOKENS

    def taken() -> int:
        return activations(shape, tokens, computed, checkpointing) + logits(shape, tokens, lean)

    while tokens > LEAST_TOKENS and taken() > size:
        tokens //= 2
    return tokens


def casts(shape: ModelShape, job: MemoryLoad) -> int:
    """Bytes of weights in the type they are computed in: on a CPU all of them until the backward
    pass, on an accelerator one block's, and the head's. Quantised ones are dequantised for one
    block, on a CPU for one map."""
    if job.quantization is not None:
        largest = max(rows * columns for rows, columns in shape.linears) * job.width
        block = shape.body // shape.layers * job.computed if job.accelerated else 0
        return block + largest + _cast_head(shape, job)
    if job.computed >= job.width:
        return 0
    if job.lean and job.accelerated:
        return shape.body // shape.layers * job.computed + _cast_head(shape, job)
    return 0 if job.checkpointing else shape.body * job.computed


def _cast_head(shape: ModelShape, job: MemoryLoad) -> int:
    casts_head = job.lean and job.accelerated and job.computed < job.width
    return shape.vocab * shape.hidden * job.computed if casts_head else 0


def key_bytes(shape: ModelShape, computed: int) -> int:
    """Bytes of the keys and values of one token."""
    return 2 * shape.kv_width * shape.layers * computed


def engine_copy(shape: ModelShape, job: MemoryLoad, on_processor: bool) -> int:
    """Bytes of the weights that the engine `lean` stores in its own layout: all linear maps on a
    CPU, and if it computes in another type; else the fused ones. Quantised ones are dequantised on
    a CPU alone."""
    if job.quantization is not None and not on_processor:
        return casts(shape, job) - shape.body // shape.layers * job.computed
    if on_processor or job.computed != job.width:
        return (shape.body + shape.vocab * shape.hidden) * job.computed
    fused = shape.query_width + 2 * shape.kv_width + 2 * shape.intermediate
    return shape.layers * shape.hidden * fused * job.computed


def size_text(count: float) -> str:
    """Bytes in a readable unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def updated_bytes(weights: WeightSizes, job: MemoryLoad) -> int:
    """Bytes of the number that the optimizer updates for a trained weight."""
    if weights.lora is not None:
        return ADAPTER_BYTES
    return WHOLE if job.masters else job.width


def on_host(weights: WeightSizes, job: MemoryLoad) -> int:
    """Bytes of the moments in the host's memory."""
    if not job.offloaded or not weights.trainable:
        return 0
    critic = weights.critic if weights.critic_learns else 0
    wide = WHOLE if job.masters else job.width
    return job.moments * (weights.trained * updated_bytes(weights, job) + critic * wide)


def _passing(weights: WeightSizes, shape: ModelShape, job: MemoryLoad, shards: int) -> Parts:
    """Bytes that are needed during a forward and backward pass."""
    parts: Parts = {}
    if weights.trainable:
        how = job.computed, job.checkpointing, job.lean and job.accelerated
        parts["activations"] = activations(shape, job.tokens, *how)
        parts["logits"] = logits(shape, job.tokens, job.lean, job.accelerated)
        if extra := casts(shape, job):
            parts["casts"] = extra
        if shards > 1:
            # a block, the next one in transfer, and embedding and head
            ends = shape.vocab * shape.hidden * (1 if shape.tied else 2)
            parts["gathered"] = (2 * shape.body // shape.layers + ends) * job.width
    if job.plays and weights.num_agents:
        rows = max(1, job.rows * weights.num_agents // max(1, job.agents))
        keys = rows * job.length * key_bytes(shape, job.computed)
        parts["kv_cache"] = keys if job.most_keys is None else min(keys, job.most_keys)
        if job.kept and weights.owns:
            parts["prefixes"] = job.kept
    return parts


def _sum(parts: Mapping[str, int], names: Sequence[str]) -> int:
    return sum(parts.get(name, 0) for name in names)
