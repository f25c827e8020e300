"""The algorithms and settings that are measured, and those that cannot be."""

from __future__ import annotations

from benchmarks.credit.measure import Entry

G = {"group_size": 4}
FORKED = ("dense4", "sparse4", "scaled4", "chain")
TOGETHER = (
    *("climbing", "xor", "irrelevant", "noisy", "dense4", "sparse4", "scaled4", "chain"),
    *("contextual", "private", "crowd2", "crowd8"),
)
"""Games with one reward for all: what algorithms that credit the team are for."""
ONE_STEP = ("climbing", "xor", "irrelevant", "noisy", "contextual", "private", "crowd2")

ENTRIES: tuple[Entry, ...] = (
    Entry("reinforce"),
    Entry("reinforce", {"baseline": "mean"}),
    Entry("reinforce_pp"),
    Entry("rloo", G),
    Entry("remax"),
    Entry("grpo", G),
    Entry("grpo", {**G, "scale_rewards": "none"}),
    Entry("dr_mas", G),
    Entry("matpo", G, games=TOGETHER),
    Entry("rema", G, games=TOGETHER),
    Entry("marshal", G),
    Entry("marshal", {**G, "scale_rewards": "none"}),
    Entry("mareinforce", {"gamma": 1.0}),
    Entry("magrpo", {**G, "gamma": 1.0}),
    Entry("magrpo", G),
    Entry("magrpo", {**G, "gamma": 1.0, "baseline_by": "role"}),
    Entry("magrpo", {**G, "gamma": 1.0, "baseline_by": "node"}, games=FORKED),
    Entry("magrpo", {"group_size": 2, "gamma": 1.0, "joint_mode": "cross"}, games=ONE_STEP),
    Entry("marloo", {**G, "gamma": 1.0}),
    Entry("maremax", {**G, "gamma": 1.0}),
    Entry("at_grpo", G),
    Entry("c3", {"alternatives": 1}),
    Entry("c3"),
    Entry("ccpo", {**G, "scale_rewards": "none"}),
    Entry("ccpo", {**G, "silent": 4, "scale_rewards": "none"}),
    Entry("ccpo", {**G, "team_coef": 1.0, "credit_coef": 0.2, "scale_rewards": "none"}),
    Entry("sharp", {**G, "scale_rewards": "none"}),
    Entry("sharp", {**G, "credit_by": "marginal", "scale_rewards": "none"}),
    Entry("m_grpo", {**G, "scale_rewards": "none"}),
    Entry("spiral"),
    Entry("a2c"),
    Entry("ppo"),
    Entry("ppo", critic="noisy"),
    Entry("ppo", critic="no"),
    Entry("ppo", {"whiten_advantages": False, "gae_lambda": 1.0}),
    Entry("mappo", games=TOGETHER),
    Entry("mappo", critic="noisy", games=TOGETHER),
    Entry("happo", games=TOGETHER),
    Entry("marft", games=TOGETHER),
    Entry("maporl", games=TOGETHER),
    Entry("cory", critic="no", games=TOGETHER),
    Entry("router_r1"),
    Entry("online_dpo", G),
    Entry("malt", G),
)
"""Rows, in the order of the table."""

LEFT_OUT = {
    "sft": "it imitates answers of experts and follows no gradient of the return",
    "dpo": "it is trained on pairs of a data set",
    "madpo": "it prefers some of its own samples to others, as online_dpo does",
    "spin": "it learns to prefer answers in a data set",
    "distill": "it follows a teacher",
    "reward_model": "it trains a reward and no policy",
    "sac": "its gradient is that of an entropy-regularised value network",
    "vdn": "its utilities are computed from text by a network",
    "qmix": "its utilities are computed from text by a network",
    "ippo": "its credit is that of ppo, line by line",
}
"""Algorithms without a row, with the reason."""
