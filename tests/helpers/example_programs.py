"""Programs in examples/, and a word that each prints."""

from __future__ import annotations

from pathlib import Path

from forking import Launcher

SAYS = {
    "ppo_math": "reward",
    "rlhf": "reward",
    "all_trainers": "sft ok",
    "magrpo_collaboration": "reward",
    "own_loop": "grad True",
    "multi_agent_rollout": "The answer is 5",
    "custom_environment": "reward",
    "custom_workflow": "eval/reward/mean",
}


def run(launcher: Launcher, program: Path, folder: Path, model: str = "") -> str:
    started = launcher.start([str(program)], folder, MRLM_MODEL=model)
    assert started.wait() == 0, started.err.read_text()[-3000:]
    return started.out.read_text()
