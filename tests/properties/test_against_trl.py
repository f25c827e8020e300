"""The losses of GRPO, RLOO and DPO, their gradients and the advantages of both are those of TRL on
the same model and the same tokens. Needs TRL, which `pip install -e ".[bench]"` brings."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("trl", reason='TRL is not installed; pip install -e ".[bench]" brings it')

from benchmarks.models import make_model, make_tokenizer
from datasets import Dataset
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer  # pyright: ignore[reportMissingImports]

from mrlm.algorithms.dpo import DPO
from mrlm.algorithms.grpo import GRPO
from mrlm.algorithms.rloo import RLOO
from mrlm.core.episodes import Episode, Group
from mrlm.core.types import Rollout, Task, Turn
from mrlm.learn.data.batch import Batch, merge, pack
from mrlm.learn.policy.policy import Policy

PROMPTS = [[5, 6, 7], [5, 6, 7], [8, 9], [8, 9]]
ANSWERS = [[10, 11, 12, 13], [14, 15], [16, 17, 18], [19]]
ADVANTAGES = [1.0, -1.0, 0.5, -2.0]
LONGEST = 6


def moved(model: Any) -> Any:
    """A model a little way from another."""
    other = copy.deepcopy(model)
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in other.parameters():
            weight += 0.03 * torch.randn_like(weight)
    return other


def scored(model: Any) -> list[list[float]]:
    """Log-probs of every answer, by the model's plain forward."""
    found = []
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        picked = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])
        found.append(picked[:, 0].tolist())
    return found


def ours(model: Any, algorithm: Any, old: list[list[float]], ref: list[list[float]]) -> Any:
    """Loss and gradient of an algorithm; of DPO with pairs of weight 1."""
    samples = []
    pairs = isinstance(algorithm, DPO)
    parts = zip(PROMPTS, ANSWERS, ADVANTAGES, old, ref, strict=True)
    for number, (prompt, answer, advantage, before, reference) in enumerate(parts):
        advantage = (-1.0) ** number if pairs else advantage
        turn = Turn("a", "p", prompt, answer, before, advantages=advantage)
        turn.old_logprobs, turn.ref_logprobs = before, reference
        samples += merge([turn], number // 2 if pairs else number, rollout=number)
    return differentiated(model, algorithm, pack(samples))


def differentiated(model: Any, algorithm: Any, batch: Batch) -> Any:
    model.zero_grad()
    policy = Policy("p", model, make_tokenizer("tiny"))
    loss = algorithm.loss(batch, policy.forward(batch))
    loss.backward()
    return loss.item(), gradient(model)


def gradient(model: Any) -> torch.Tensor:
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


def padded(rows: list[Any], left: bool = False) -> torch.Tensor:
    width = max(map(len, rows))
    filler = [[0] * (width - len(row)) for row in rows]
    return torch.tensor([f + r if left else r + f for r, f in zip(rows, filler, strict=True)])


def inputs(old: list[list[float]], ref: list[list[float]]) -> dict[str, torch.Tensor]:
    """The same batch as TRL's trainers pass it on."""
    ones = [[[1] * len(row) for row in rows] for rows in (PROMPTS, ANSWERS)]
    return {
        "prompt_ids": padded(PROMPTS, left=True),
        "prompt_mask": padded(ones[0], left=True),
        "completion_ids": padded(ANSWERS),
        "completion_mask": padded(ones[1]),
        "advantages": torch.tensor(ADVANTAGES),
        "old_per_token_logps": padded(old),
        "old_logps": torch.tensor([sum(row) for row in old]),
        "ref_per_token_logps": padded(ref),
        "num_items_in_batch": torch.tensor(sum(map(len, ANSWERS))),
    }


def common(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "max_steps": 1,
    }


def paid(completions: list[str], **columns: Any) -> list[float]:
    """Something else for every answer."""
    return [sum(map(ord, text)) % 17 / 7 for text in completions]


def trainer(kind: Any, config: Any, folder: Path, model: Any, **settings: Any) -> Any:
    """A trainer of TRL for groups, on prompts of our vocabulary."""
    args = config(
        per_device_train_batch_size=4,
        num_generations=settings.pop("num_generations", 2),
        max_completion_length=LONGEST,
        **settings,
        **common(folder),
    )
    prompts = [f"w{i} w{i + 1}" for i in range(10, 18)]
    return kind(
        model=model,
        reward_funcs=paid,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=make_tokenizer("tiny"),
    )


def theirs(peer: Any, batch: dict[str, torch.Tensor]) -> tuple[float, torch.Tensor]:
    peer.model.eval()  # no accumulation; the model has no dropout
    peer.model.zero_grad()
    loss = peer._compute_loss(peer.model, batch)
    loss.backward()
    return loss.item(), gradient(peer.model)


def same(mine: tuple[float, torch.Tensor], other: tuple[float, torch.Tensor]) -> None:
    assert mine[0] == pytest.approx(other[0], rel=1e-5, abs=1e-6)
    torch.testing.assert_close(mine[1], other[1], rtol=1e-4, atol=1e-6)
    assert mine[1].abs().max() > 1e-4, "there is a gradient to compare"


GRPO_LOSSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": ({"loss_type": "grpo"}, {"loss_type": "grpo"}),
    "bnpo": ({"loss_type": "bnpo"}, {"loss_type": "bnpo"}),
    "dapo": (
        {"loss_type": "dapo", "clip_range_high": 0.28},
        {"loss_type": "dapo", "epsilon_high": 0.28},
    ),
    "dr_grpo": ({"loss_type": "dr_grpo", "constant_length": LONGEST}, {"loss_type": "dr_grpo"}),
    "gspo": (
        {"loss_type": "gspo", "clip_range": 0.2, "clip_range_high": 0.2},
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ),
    "a ratio of sequences, averaged over tokens": (
        {"loss_type": "gspo", "aggregation": "token_mean", "clip_range": 0.2},
        {"loss_type": "dapo", "importance_sampling_level": "sequence"},
    ),
    "cispo": (
        {"loss_type": "cispo", "cispo_cap": 1.1},
        {"loss_type": "cispo", "epsilon_high": 1.1},
    ),
    "with a reference": (
        {"loss_type": "grpo", "kl_coef": 0.3},
        {"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": False},
    ),
}


@pytest.mark.parametrize("name", GRPO_LOSSES)
def test_grpo_and_its_kin_have_the_same_loss_and_gradient(name: str, tmp_path: Path) -> None:
    mine, other = map(dict, GRPO_LOSSES[name])
    model = make_model("tiny")
    old, ref = scored(moved(model)), scored(make_model("tiny", seed=1))
    beta = other.pop("beta", 0.0)
    peer = trainer(GRPOTrainer, GRPOConfig, tmp_path, copy.deepcopy(model), beta=0.0, **other)
    peer.beta = beta  # given earlier, TRL would look for a model of this name to refer to
    same(ours(model, GRPO(importance="none", **mine), old, ref), theirs(peer, inputs(old, ref)))


def test_rloo_has_the_same_loss_and_gradient(tmp_path: Path) -> None:
    model = make_model("tiny")
    old = scored(moved(model))
    peer = trainer(RLOOTrainer, RLOOConfig, tmp_path, copy.deepcopy(model), beta=0.0)
    same(ours(model, RLOO(), old, old), theirs(peer, inputs(old, old)))


def captured(
    kind: Any, config: Any, folder: Path, **settings: Any
) -> tuple[np.ndarray, list[float]]:
    """Advantages that TRL gives to a batch that it has sampled itself, and the rewards."""
    seen: dict[str, Any] = {}

    class Watching(kind):  # type: ignore[misc,valid-type]
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            seen.setdefault("inputs", inputs)
            return super().compute_loss(model, inputs, *args, **kwargs)

    peer = trainer(Watching, config, folder, make_model("tiny"), num_generations=4, **settings)
    peer.train()
    texts = peer.processing_class.batch_decode(
        seen["inputs"]["completion_ids"], skip_special_tokens=True
    )
    return seen["inputs"]["advantages"].numpy(), paid(texts)


def credited(algorithm: Any, rewards: list[float]) -> list[float]:
    """Advantages that we give to a group of these rewards."""
    turns = [Turn("a", "p", [1], [2], [-1.0], reward=reward) for reward in rewards]
    rollouts = [Rollout("a", "p", "t", [turn]) for turn in turns]
    episodes = [
        Episode(str(i), Task("t"), {"a": rollout}, rollout.reward, [rollout.reward], "done")
        for i, rollout in enumerate(rollouts)
    ]
    algorithm.credit([Group(episodes, "t")])
    return [float(turn.advantages) for turn in turns]


@pytest.mark.parametrize("scale", ["none", "group"])
def test_grpo_gives_the_same_advantages(scale: Any, tmp_path: Path) -> None:
    """Where the deviation divides, TRL adds 1e-4 to it and we add 1e-6."""
    found, rewards = captured(GRPOTrainer, GRPOConfig, tmp_path, beta=0.0, scale_rewards=scale)
    assert len(set(rewards)) > 1
    mine = credited(GRPO(group_size=4, scale_rewards=scale), rewards)
    np.testing.assert_allclose(mine, found, atol=1e-6 if scale == "none" else 2e-3)


def test_rloo_gives_the_same_advantages(tmp_path: Path) -> None:
    found, rewards = captured(RLOOTrainer, RLOOConfig, tmp_path, beta=0.0)
    assert len(set(rewards)) > 1
    np.testing.assert_allclose(credited(RLOO(group_size=4), rewards), found, atol=1e-6)


DPO_LOSSES: dict[str, dict[str, Any]] = {
    "sigmoid": {},
    "robust": {"loss_type": "robust", "label_smoothing": 0.1},
    "hinge": {"loss_type": "hinge"},
    "ipo": {"loss_type": "ipo"},
}


@pytest.mark.parametrize("name", DPO_LOSSES)
def test_dpo_has_the_same_loss_and_gradient(name: str, tmp_path: Path) -> None:
    fields = {"loss_type": "sigmoid", **DPO_LOSSES[name]}
    model, reference = make_model("tiny"), make_model("tiny", seed=1)
    ref = scored(reference)
    mine = ours(model, DPO(beta=0.2, **fields), ref, ref)
    rows = [{"prompt": "w5", "chosen": "w6", "rejected": "w7"}] * 4
    peer = DPOTrainer(
        model=copy.deepcopy(model),
        ref_model=reference,
        args=DPOConfig(
            beta=0.2, per_device_train_batch_size=2, max_length=64, **fields, **common(tmp_path)
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=make_tokenizer("tiny", endless=False),
    )
    peer.model.eval()
    peer.model.zero_grad()
    order = [0, 2, 1, 3]  # what was chosen comes first, then what was rejected
    whole = [PROMPTS[i] + ANSWERS[i] for i in order]
    marks = [[0] * len(PROMPTS[i]) + [1] * len(ANSWERS[i]) for i in order]
    batch = {
        "input_ids": padded(whole),
        "attention_mask": padded([[1] * len(row) for row in whole]),
        "completion_mask": padded(marks),
    }
    loss = peer._compute_loss(peer.model, batch, return_outputs=False)
    loss.backward()
    same(mine, (loss.item(), gradient(peer.model)))
