"""All rows, in the order of the table, with the bounds that they are held against."""

from __future__ import annotations

from benchmarks import (
    decoding,
    gpu,
    grading,
    growth,
    int8,
    long_run,
    memory,
    prompts,
    quantized,
    recording,
    steps,
    viewer,
)
from benchmarks.rows import Row
from benchmarks.work import Work

STEP = Work("15M", prompts=4, group=8, read=64, written=128)
LARGE = Work("120M", prompts=4, group=8, read=64, written=128)
HALF = Work("15M", prompts=4, group=8, read=64, written=128, precision="bf16")
LONG = Work("15M", prompts=4, group=8, read=512, written=64)
OWN = Work("15M", prompts=1, group=4, read=64, written=128, agents=2, weights="own")
TEAM = Work("15M", prompts=1, group=4, read=64, written=128, agents=4)
READERS = Work("15M", prompts=1, group=8, read=256, written=64, agents=4)
TREE = Work("15M", prompts=1, group=2, read=64, written=128, agents=2, turns=4, tree=True)
WRITTEN = Work("15M", prompts=32, group=1, read=64, written=128)
PAIRS = Work("15M", prompts=16, group=2, read=64, written=128)
TALK = Work("15M", prompts=2, group=2, read=32, written=32)
SHORT = Work("0.4M", prompts=1, group=4, read=16, written=8)
FEW = Work("15M", prompts=1, group=4, read=32, written=32)
ON_GPU = Work("0.5B", prompts=64, group=1, read=256, written=256, precision="bf16")
GPU_GROUPS = Work("0.5B", prompts=8, group=8, read=256, written=256, precision="bf16")
GPU_TEAM = Work("0.5B", 1, 8, read=256, written=64, agents=4, precision="bf16")
GPU_ADAPTERS = Work("0.5B", 4, 8, read=256, written=128, agents=8, precision="bf16")
GPU_QUANTIZED = Work("8B", 4, 8, 256, 128, agents=4, weights="lora", precision="bf16")
TAIL = decoding.tail_lengths(128, mean=80, most=512)
GPU_TAIL = decoding.tail_lengths(512, mean=128, most=512)

ROWS = [
    Row("quickstart", "Step of the quickstart, 0.4M, ms", steps.quickstart, unit="ms", less=True),
    Row("grading", "Grading of math, algebra, qa and code, ms", grading.row, unit="ms", less=True),
    Row("grpo-15m", "GRPO step, 15M, fp32, vs TRL", steps.grpo(STEP), 2.5, 4),
    Row("grpo-120m", "GRPO step, 120M, fp32, vs TRL", steps.grpo(LARGE), 2.5, 4),
    Row("grpo-15m-bf16", "GRPO step, 15M, both bf16, vs TRL", steps.grpo(HALF), 3, 5),
    Row("grpo-long", "GRPO step, 15M, 512 + 64 tokens, fp32, vs TRL", steps.grpo(LONG), 4, 8),
    Row(
        "magrpo-own",
        "MAGRPO, 16 prompts, 2 agents, own weights, vs CoMLRL, per prompt",
        steps.magrpo(OWN, together=16),
        4,
        10,
    ),
    Row("magrpo-shared", "MAGRPO, 4 agents, shared base, vs CoMLRL", steps.magrpo(TEAM), 3, 6),
    Row(
        "magrpo-long",
        "MAGRPO, 4 agents, shared base, 256 + 64 tokens, G=8, vs CoMLRL",
        steps.magrpo(READERS),
        5,
        10,
    ),
    Row(
        "magrpo-tree",
        "MAGRPO tree, 2 agents, shared base, 4 turns, G=2, vs CoMLRL",
        steps.magrpo(TREE),
        4,
        12,
    ),
    Row("ippo", "IPPO, 2 agents, vs CoMLRL IAC", steps.ippo(OWN), 3, 6),
    Row("sft", "SFT step, 15M, fp32, vs TRL", steps.sft(WRITTEN), 2, 3),
    Row("dpo", "DPO step, 15M, fp32, vs TRL", steps.dpo(PAIRS), 2, 3),
    Row(
        "long-tail",
        "Rollouts with a long tail, 15M, vs generate of transformers",
        decoding.long_tail("15M", 64, TAIL, rows=32),
        4,
        6,
    ),
    Row(
        "decode",
        "Decode 120M, fp32, 1 row, 2 threads: share of the bandwidth floor",
        decoding.one_row("120M", read=16, written=128, threads=2),
        0.5,
        0.75,
        unit="share",
    ),
    Row(
        "int8",
        "Sampling 15M, 32 rows, over products in 8 bits",
        int8.faster("15M", 64, 128, (1, 32)),
    ),
    Row(
        "int8-120m",
        "Sampling 120M, 32 rows, over products in 8 bits",
        int8.faster("120M", 64, 24, (1, 32)),
    ),
    Row(
        "memory",
        "Memory of 8 LoRA agents over one and 7 adapters, 120M",
        memory.adapters("120M"),
        1.5,
        1.1,
        less=True,
    ),
    Row(
        "agents",
        "Cost of 8 agents over 1, shared base, same tokens, 15M",
        growth.agents("15M", rows=32, numbers=(1, 2, 4, 8, 16)),
        1.3,
        1.1,
        less=True,
    ),
    Row(
        "turns",
        "Cost of a turn between turns 4 and 8 over between 1 and 4, 15M",
        growth.turns(TALK, (1, 2, 4, 8, 16)),
        1.3,
        1.3,
        less=True,
    ),
    Row(
        "long-talks",
        "Cost of a turn at 64 turns over one at 4, 0.4M",
        growth.long_talks(SHORT, (4, 16, 64)),
        1.6,
        1.3,
        less=True,
    ),
    Row(
        "adapters",
        "16 agents with an adapter each over 16 on one policy, 0.4M",
        growth.adapters(SHORT, (1, 4, 16)),
        1.5,
        1.2,
        less=True,
    ),
    Row(
        "group",
        "Cost of a sample at G=64 over G=2, 15M",
        growth.siblings(FEW, (2, 4, 8, 16, 32, 64)),
        less=True,
    ),
    Row(
        "prompt",
        "Cost of a step at 4096 prompt tokens over 32, 15M",
        growth.prompts(FEW, (32, 128, 512, 1024, 2048, 4096)),
        less=True,
    ),
    Row(
        "long-run",
        "Cost of an episode at 4,096 in a step over 256, 0.4M",
        long_run.growth(long_run.WORK, long_run.STEPS, run=20_000, sizes=[0.01, 0.1]),
        less=True,
    ),
    Row(
        "page-list",
        "Page of 5,000 episodes: from opening to the list, ms",
        viewer.listing(5000),
        1000,
        500,
        unit="ms",
        less=True,
    ),
    Row(
        "page-episode",
        "Page of 5,000 episodes: an episode is opened, ms",
        viewer.opening(5000),
        100,
        50,
        unit="ms",
        less=True,
    ),
    Row(
        "page-search",
        "Page of 92,000 episodes: slowest of filters, a search and a sort, ms",
        viewer.searching(92_000),
        1000,
        250,
        unit="ms",
        less=True,
    ),
    Row(
        "record",
        "Cost of a recorded GRPO step over one that is not, 15M",
        recording.share(STEP),
        1.03,
        1.01,
        less=True,
    ),
    Row(
        "prompts",
        "Prompt of the 64th turn over that of the 8th: rendered and tokenised",
        prompts.growth(64),
        4,
        2,
        less=True,
    ),
    Row(
        "gpu-magrpo",
        "GPU: MAGRPO, 4 agents, shared base, 0.5B, bf16, vs CoMLRL",
        steps.magrpo(GPU_TEAM, accelerated=True),
        15,
        40,
    ),
    Row(
        "gpu-magrpo-8",
        "GPU: the same, 8 prompts a step, per prompt",
        steps.magrpo(GPU_TEAM, together=8, accelerated=True),
    ),
    Row(
        "gpu-memory",
        "GPU: peak memory of four shapes against plan: the ratio farthest from 1",
        gpu.memory(),
        1.15,
        1.08,
        less=True,
    ),
    Row(
        "gpu-adapters",
        "GPU: rollouts with 8 adapters in the batch over one adapter, 0.5B, bf16",
        gpu.adapters(GPU_ADAPTERS),
        1.3,
        1.1,
        less=True,
    ),
    Row(
        "gpu-qlora",
        "GPU: 4 agents on an 8B-shaped NF4 base within 24 GiB: share of 2,000 sampled and 4,000 "
        "trained tokens/s",
        quantized.adapters(GPU_QUANTIZED),
        0,
        1,
    ),
    Row(
        "gpu-rollouts",
        "GPU: rollouts, 0.5B, bf16, vs generate of transformers",
        gpu.rollouts("0.5B", 256, GPU_TAIL, rows=256),
        5,
        10,
    ),
    Row(
        "gpu-vllm",
        "GPU: rollouts, 0.5B, bf16, vs vLLM",
        gpu.rollouts("0.5B", 256, GPU_TAIL, rows=256, peer="vllm_peer"),
    ),
    Row(
        "gpu-train",
        "GPU: training, 0.5B, bf16, tokens per second",
        gpu.training(ON_GPU),
        25_000,
        40_000,
        unit="tokens/s",
    ),
    Row(
        "gpu-grpo",
        "GPU: GRPO step, 0.5B, bf16, vs TRL",
        gpu.step(GPU_GROUPS),
    ),
]
