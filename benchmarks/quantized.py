"""Adapters on a large base in 4 bits: a model of random weights that is made on the device, map by
map, so that it never exists in 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.models import SHAPES, config_of
from benchmarks.ours import playing
from benchmarks.planning import Case, predicted
from benchmarks.rows import Bench, Result
from benchmarks.steps import small
from benchmarks.timing import repeat
from benchmarks.work import Work
from mrlm.learn.policy.quantized import import_bitsandbytes

GIB = 1 << 30
CAP = 24 * GIB
"""Memory of the device that is used at most."""
PLANNED: dict[str, Any] = {"model.torch_dtype": "bfloat16", "model.quantization": "nf4"}
SECTIONS: dict[str, Any] = {
    "training": {"max_tokens_per_microbatch": 1024},
    "engine": {"timeout": 36000, "kv_mib": 6144, "batch_size": 256},
}
"""What would follow from the memory of the whole device."""
SAMPLED, TRAINED = 2000.0, 4000.0
"""Tokens per second that are wanted."""


def adapters(work: Work) -> Callable[[Bench], Result]:
    """Steps of agents with an adapter each on one NF4 base, within `CAP`: the smaller share of the
    wanted sampled and trained tokens per second."""

    def measure(bench: Bench) -> Result:
        device = bench.accelerator()
        done = small(work, bench)
        if device == "cuda":
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, CAP / total))
        base = make_quantized(done.shape, device)
        ours = playing(done, "magrpo", device=device, model=base, **SECTIONS)
        clock, seconds = bench.clock(device=device), {"play": 0.0, "learn": 0.0}

        class Timed:
            def step(self) -> None:
                ours.step()
                for phase in seconds:
                    seconds[phase] = ours.metrics[f"seconds/{phase}"]

            counts = staticmethod(ours.counts)

        times = repeat(Timed(), bench.rounds, clock, done.counts)
        plan = predicted(Case("", done, "magrpo"), ours, device, PLANNED)
        result = Result(threads=clock.threads, clock=clock.name, rounds=bench.rounds)
        sampled, trained = (
            tokens / seconds[phase]
            for tokens, phase in ((done.counts.sampled, "play"), (done.counts.trained, "learn"))
        )
        result.value = result.low = result.high = min(sampled / SAMPLED, trained / TRAINED)
        result.ours = times.median
        result.note = (
            f"{done.agents} agents, {sampled:.0f} sampled and {trained:.0f} trained tokens a "
            f"second; planned {plan['said_bytes'] / GIB:.2f} GiB"
        )
        if device == "cuda":
            most = torch.cuda.max_memory_allocated()
            ratio = plan["said_bytes"] / most
            result.note += f", measured {most / GIB:.2f} GiB (ratio {ratio:.2f})"
        ours.close()
        return result

    return measure


def make_quantized(shape: str, device: str, seed: int = 0) -> Any:
    """A model of a shape in bfloat16 whose linear maps are NF4 with double quantisation."""
    from transformers import Qwen2ForCausalLM

    bitsandbytes, config = import_bitsandbytes(), config_of(SHAPES[shape])
    with torch.device("meta"):
        model: Any = Qwen2ForCausalLM(config)
    draws = torch.Generator(device).manual_seed(seed)

    def random(*size: int) -> torch.Tensor:
        values = torch.empty(size, device=device, dtype=torch.bfloat16)
        return values.normal_(0.0, 0.02, generator=draws)

    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.Linear) or name == "lm_head":
            continue
        bias = module.bias is not None
        made = bitsandbytes.nn.Linear4bit(
            1, 1, bias, torch.bfloat16, quant_type="nf4", device="meta"
        )
        made.in_features, made.out_features = module.in_features, module.out_features
        weight = bitsandbytes.nn.Params4bit(
            random(module.out_features, module.in_features),
            requires_grad=False,
            quant_type="nf4",
            compress_statistics=True,
            module=made,
        )
        made.weight = weight.to(device)
        if bias:
            made.bias = nn.Parameter(random(module.out_features), requires_grad=False)
        model.set_submodule(name, made)
    embedding = nn.Parameter(random(config.vocab_size, config.hidden_size), requires_grad=False)
    model.model.embed_tokens.weight = model.lm_head.weight = embedding
    for module in model.modules():
        for key, value in list(module._parameters.items()):
            if value is not None and value.is_meta:  # factors of norms
                ones = torch.ones(value.shape, device=device, dtype=torch.bfloat16)
                module._parameters[key] = nn.Parameter(ones, requires_grad=False)
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)
    model.is_loaded_in_4bit = True  # as PEFT asks
    return model.eval()
