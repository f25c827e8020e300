"""Adapters of PEFT of every kind, on the embedded model, and PEFT's own training of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from mrlm import default_model

KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "alpha_pattern": {"alpha_pattern": {"q_proj": 3}},
    "rank_pattern": {"rank_pattern": {"q_proj": 2}},
    "lora_bias": {"lora_bias": True},
    "head": {"modules_to_save": ["lm_head"]},
    "norm": {"modules_to_save": ["norm", "input_layernorm"]},
    "tokens": {"trainable_token_indices": [40, 41, 42, 50]},
    "pissa": {"init_lora_weights": "pissa"},
    "olora": {"init_lora_weights": "olora"},
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "layers": {"layers_to_transform": [1]},
    "exclude": {"target_modules": "all-linear", "exclude_modules": ["v_proj"]},
    "noise": {"init_lora_weights": False},
    "gaussian": {"init_lora_weights": "gaussian"},
}
ROWS = [
    {
        "messages": [
            {"role": "user", "content": f"{number}+1"},
            {"role": "assistant", "content": f"{number + 1}!" * (1 + number % 2)},
        ]
    }
    for number in range(4)
]
PAIRS = [{"prompt": "1+1", "chosen": "2", "rejected": "3"}] * 2


def base() -> Any:
    return AutoModelForCausalLM.from_pretrained(default_model(), dtype=torch.float32)


def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(default_model())


def config(kind: str, **more: Any) -> LoraConfig:
    settings: dict[str, Any] = {
        "r": 4,
        "lora_alpha": 6,
        "target_modules": ["q_proj", "v_proj", "down_proj"],
    }
    return LoraConfig(**(settings | KINDS[kind] | {"task_type": "CAUSAL_LM"} | more))


def peft_model(kind: str, trained: bool = False) -> Any:
    """A live PEFT model; `trained`: its adapter is no longer a new one."""
    torch.manual_seed(0)
    model = get_peft_model(base(), config(kind))
    for parameter in model.parameters():
        if trained and parameter.requires_grad:
            parameter.data.add_(0.02 * torch.randn_like(parameter))
    return model


def saved(model: Any, folder: Any) -> str:
    """The folder of an adapter, as PEFT writes it."""
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def loaded(folder: Any) -> Any:
    """The adapter of a folder, as PEFT trains it further."""
    return PeftModel.from_pretrained(base(), str(folder), is_trainable=True)


def loss_of(model: Any, rows: Sequence[Mapping[str, Any]] = ROWS) -> torch.Tensor:
    """The mean cross entropy of the answers, by the model's own forward."""
    reader, total, count = tokenizer(), torch.zeros(()), 0
    for row in rows:
        question, answer = row["messages"]
        prompt = reader.apply_chat_template(
            [question], add_generation_prompt=True, return_dict=False
        )
        answered = reader(answer["content"], add_special_tokens=False).input_ids
        ids = torch.tensor([[*prompt, *answered, reader.eos_token_id]])
        scores = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        total = total - scores.gather(1, ids[0, len(prompt) :, None]).sum()
        count += ids.shape[1] - len(prompt)
    return total / count


def trainable(model: Any, adapter: str = "default") -> dict[str, torch.Tensor]:
    """The trainable parameters, without the name of their adapter."""
    return {
        f"{key}.".replace(f".{adapter}.", "."): value
        for key, value in model.named_parameters()
        if value.requires_grad
    }


def descended(model: Any, steps: int, rate: float, adapter: str = "default") -> dict[str, Any]:
    """The trainable parameters after steps of gradient descent by PEFT's own forward and
    backward."""
    own = list(trainable(model, adapter).values())
    model.eval()
    for _ in range(steps):
        slopes = torch.autograd.grad(loss_of(model), own, allow_unused=True)
        with torch.no_grad():
            for value, slope in zip(own, slopes, strict=True):
                if slope is not None:
                    value.sub_(rate * slope)
    return trainable(model, adapter)
