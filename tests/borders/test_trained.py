"""What a step trains: decay groups, master weights, epochs, forked rollouts, autocast, dropout."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

import mrlm
from mrlm import GRPO, REINFORCE, DPOTrainer, Generator, Learner, Message, Rollout, SFTTrainer
from mrlm.learn.optimizer import LearnerSettings, Stepper
from mrlm.learn.policy.policy import as_policy

pytestmark = pytest.mark.system

TITLE = "What a step trains"
JUDGE = "torch's autograd and AdamW; transformers' Trainer; TRL's DPOTrainer"
DIFFERENCES = ("a tie of a preference pair counts one half in `rewards/accuracies`, and 0 in TRL",)

ROWS = [{"prompt": "2+2=", "completion": "4"}, {"prompt": "1+1=", "completion": "two"}]
PAIRS = [{"prompt": "2+2=", "chosen": "4", "rejected": f"{n}5"} for n in range(8)]
SMALL = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 270}
BLOCK = {"intermediate_size": 32, "num_key_value_heads": 1, "head_dim": 8}
MODELS: dict[str, dict[str, Any]] = {
    "llama": SMALL | BLOCK,
    "qwen2": SMALL | BLOCK,
    "qwen3": SMALL | BLOCK,
    "gemma2": SMALL | BLOCK,
    "gpt_neox": SMALL | {"intermediate_size": 32},
    "opt": SMALL | {"ffn_dim": 32, "word_embed_proj_dim": 16},
    "gpt2": {"n_embd": 16, "n_head": 2, "n_layer": 2, "vocab_size": 270},
    "bloom": {"hidden_size": 16, "n_head": 2, "n_layer": 2, "vocab_size": 270},
    "phi": SMALL | {"intermediate_size": 32},
    "olmo2": SMALL | {"intermediate_size": 32, "num_key_value_heads": 1},
}


def made(kind: str, **changes: Any) -> Any:
    """A small model with random weights, the same ones each time."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **MODELS[kind], **changes)
    return AutoModelForCausalLM.from_config(config)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(mrlm.default_model())


def tiny(dtype: torch.dtype = torch.float32) -> Any:
    return AutoModelForCausalLM.from_pretrained(mrlm.default_model(), dtype=dtype)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("adapter", [False, True])
def test_norms_and_biases_have_no_decay(kind: str, adapter: bool, tokenizer: Any) -> None:
    model = made(kind)
    if adapter:
        peft = pytest.importorskip("peft")
        config = peft.LoraConfig(target_modules="all-linear", lora_bias=True)
        model = peft.get_peft_model(model, config)
    policy = as_policy("policy", model, tokenizer)
    stepper = Stepper(policy, LearnerSettings(weight_decay=0.1))
    decayed = {
        id(w) for g in stepper.optimizer.param_groups if g["weight_decay"] for w in g["params"]
    }
    trained = {name: id(w) for name, w in model.named_parameters() if w.requires_grad}
    ours = {name for name, weight in trained.items() if weight in decayed}
    theirs = set(Trainer.get_decay_parameter_names(None, model))  # type: ignore[arg-type]
    assert ours == theirs & trained.keys() and ours


def grouped(model: Any, decay: float) -> list[dict[str, Any]]:
    """The parameter groups of transformers' `Trainer`."""
    names = set(Trainer.get_decay_parameter_names(None, model))  # type: ignore[arg-type]
    named = dict(model.named_parameters())
    first = [weight for name, weight in named.items() if name in names]
    rest = [weight for name, weight in named.items() if name not in names]
    return [{"params": first, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]


def texts(tokenizer: Any) -> list[tuple[Tensor, Tensor]]:
    """Ids and labels of `ROWS`, by the tokenizer's own template."""
    found = []
    for row in ROWS:
        question = {"role": "user", "content": row["prompt"]}
        answer = {"role": "assistant", "content": row["completion"]}
        prompt, whole = (
            tokenizer.apply_chat_template(m, add_generation_prompt=g, tokenize=False)
            for m, g in (([question], True), ([question, answer], False))
        )
        ids = tokenizer(whole.rstrip("\n"), add_special_tokens=False)["input_ids"]
        start = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
        labels = [-100] * start + ids[start:]
        found.append((torch.tensor([ids]), torch.tensor([labels])))
    return found


def trained_by_torch(model: Any, tokenizer: Any, steps: int, rate: float, decay: float) -> Any:
    """The model after steps of AdamW on the mean over all answer tokens of `ROWS`."""
    optimizer = torch.optim.AdamW(grouped(model, decay), lr=rate)
    rows = texts(tokenizer)
    count = sum(int((labels != -100).sum()) for _, labels in rows)
    for _ in range(steps):
        optimizer.zero_grad()
        for ids, labels in rows:
            logits = model(ids).logits[0, :-1].float()
            loss = torch.nn.functional.cross_entropy(logits, labels[0, 1:], reduction="sum")
            (loss / count).backward()
        optimizer.step()
    return model


def trained_by_us(model: Any, tokenizer: Any, folder: Path, steps: int, **words: Any) -> Any:
    SFTTrainer(
        model=model,
        tokenizer=tokenizer,
        train_dataset=ROWS,
        batch_size=len(ROWS),
        num_iterations=steps,
        max_grad_norm=None,
        output_dir=str(folder),
        report_to="none",
        **words,
    ).train()
    return model


def test_steps_with_decay_are_those_of_torch(tokenizer: Any, tmp_path: Path) -> None:
    rate, decay = 1e-3, 0.5
    theirs = trained_by_torch(tiny(), tokenizer, 3, rate, decay)
    ours = trained_by_us(
        tiny(), tokenizer, tmp_path / "run", 3, learning_rate=rate, weight_decay=decay
    )
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-3, msg=name)


def share_moved(before: Any, after: Any) -> float:
    """Share of the weights that differ after rounding to bfloat16."""
    pairs = [*zip(before.parameters(), after.parameters(), strict=True)]
    moved = sum(int((a.bfloat16() != b.bfloat16()).sum()) for a, b in pairs)
    return moved / sum(a.numel() for a, _ in pairs)


def test_weights_in_bfloat16_move_like_float32(tokenizer: Any, tmp_path: Path) -> None:
    """At the default rate of SFT: the judge's in-place steps leave nearly all of them."""
    start, rate, steps = tiny(torch.bfloat16), 2e-5, 10
    whole = trained_by_torch(copy.deepcopy(start).float(), tokenizer, steps, rate, 0.0)
    in_place = trained_by_torch(copy.deepcopy(start), tokenizer, steps, rate, 0.0)
    ours = trained_by_us(
        copy.deepcopy(start), tokenizer, tmp_path / "run", steps, learning_rate=rate
    )
    refused = trained_by_us(
        copy.deepcopy(start),
        tokenizer,
        tmp_path / "place",
        steps,
        learning_rate=rate,
        master_weights=False,
    )
    expected = share_moved(start, whole)
    assert next(ours.parameters()).dtype == torch.bfloat16
    assert share_moved(start, ours) == pytest.approx(expected, rel=0.1)
    assert share_moved(start, in_place) < expected / 2 > share_moved(start, refused)


def test_master_weights_take_the_steps_of_adamw(tokenizer: Any) -> None:
    """Gradients in bfloat16, numbers in float32: the last bit."""
    model = tiny(torch.bfloat16)
    copies = [torch.nn.Parameter(weight.detach().float()) for weight in model.parameters()]
    judge = torch.optim.AdamW(copies, lr=1e-5, weight_decay=0.0, fused=True)
    settings = LearnerSettings(learning_rate=1e-5, max_grad_norm=None)
    stepper = Stepper(as_policy("policy", model, tokenizer), settings)
    stepper.begin(0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        for weight, whole in zip(stepper.weights, copies, strict=True):
            weight.grad = torch.randn(weight.shape, generator=generator).to(weight.dtype)
            whole.grad = weight.grad.float()
        stepper.norm()
        stepper.step(apply=True)
        judge.step()
    for weight, whole in zip(stepper.weights, copies, strict=True):
        assert torch.equal(weight, whole.bfloat16())


class Visits(mrlm.Callback):
    """Counts rows and steps."""

    def __init__(self) -> None:
        self.rows, self.steps = 0, 0

    def on_episodes(self, run: Any, step: int, episodes: Any) -> None:
        self.rows += sum(episode.id.endswith("/0") for episode in episodes)

    def on_step_end(self, run: Any, metrics: Any) -> None:
        self.steps += 1


@pytest.mark.parametrize("trainer", [SFTTrainer, DPOTrainer])
@pytest.mark.parametrize(
    ("rows", "batch", "epochs"), [(3, 8, 2), (8, 3, 2), (6, 3, 2), (5, 5, 3), (7, 4, 1)]
)
def test_epochs_count_rows(
    trainer: Any, rows: int, batch: int, epochs: int, tokenizer: Any, tmp_path: Path
) -> None:
    seen: list[int] = []

    def collate(features: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        seen.append(len(features))
        ids = torch.stack([each["input_ids"] for each in features])
        return {"input_ids": ids, "labels": ids}

    judge = Trainer(
        made("gpt2"),
        TrainingArguments(
            str(tmp_path / "theirs"),
            per_device_train_batch_size=batch,
            num_train_epochs=epochs,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=[{"input_ids": torch.tensor([1, 2, 3])}] * rows,  # type: ignore[arg-type]
        data_collator=collate,
    )
    judge.train()
    visits = Visits()
    data = PAIRS if trainer is DPOTrainer else ROWS * 4
    trainer(
        model=mrlm.default_model(),
        train_dataset=data[:rows],
        batch_size=batch,
        num_epochs=epochs,
        callbacks=[visits],
        output_dir=str(tmp_path / "ours"),
        report_to="none",
    ).train()
    assert (visits.rows, visits.steps) == (sum(seen), judge.state.global_step)


REWRITING = (
    "{% for m in messages %}{% if m.role == 'user' or loop.last %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""It drops earlier answers, so that each turn is a sample of its own."""
LOSSES = {
    "reinforce": lambda tokens, length: 1.0,
    "grpo": lambda tokens, length: 1.0 / tokens,
    "gspo": lambda tokens, length: 1.0 / tokens,
    "sequence": lambda tokens, length: 1.0,
    "dr_grpo": lambda tokens, length: 1.0 / length,
}
"""Loss -> the weight of a token of a rollout."""


def played(model: Any, tokenizer: Any, turns: tuple[int, ...]) -> list[Rollout]:
    """Sampled rollouts of so many turns."""
    found = []
    for number, count in enumerate(turns):
        generator = Generator(model, tokenizer, max_new_tokens=5, seed=number)
        found.append(Rollout())
        for _ in range(count):
            found[-1].add_messages(Message("go on"))
            generator.generate(found[-1])
    return found


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("algorithm", [GRPO, REINFORCE])
def test_a_rollout_counts_once_however_its_template_forks_it(
    loss_type: str, algorithm: Any, tokenizer: Any, record_property: Any
) -> None:
    record_property("cases", 2)
    model = made("llama", max_position_embeddings=512)
    rewards = [1.0, 0.0, 0.5]
    for template in (tokenizer.chat_template, REWRITING):
        reading = copy.deepcopy(tokenizer)
        reading.chat_template = template
        settings = {"constant_length": 50} if loss_type == "dr_grpo" else {}
        rollouts = played(model, reading, (3, 1, 2))
        learner = Learner(model, reading, algorithm(loss_type=loss_type, **settings))
        keys = {"group_by": lambda each: 0}
        batch = learner.batch(rollouts, rewards, **keys)
        assert (batch.num_sequences > len(rollouts)) == (template == REWRITING)
        expected = by_hand(model, batch, LOSSES[loss_type])
        model.zero_grad()
        learner.calculate_loss(rollouts, rewards, **keys).backward()
        found = torch.cat([weight.grad.flatten() for weight in model.parameters()])
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


def by_hand(model: Any, batch: Any, weight: Any) -> Tensor:
    """The policy gradient of rollouts by torch's autograd, each turn read after its own prompt."""
    tokens: dict[int, int] = {}
    for sample in batch.samples:
        count = sum(len(turn.completion_ids) for turn in sample.turns)
        tokens[sample.rollout] = tokens.get(sample.rollout, 0) + count
    total = torch.zeros(())
    for sample in batch.samples:
        for turn in sample.turns:
            ids = torch.tensor([[*turn.prompt_ids, *turn.completion_ids]])
            start = len(turn.prompt_ids)
            logprobs = model(ids).logits[0, start - 1 : -1].log_softmax(-1)
            chosen = logprobs.gather(1, ids[0, start:, None]).sum()
            share = weight(tokens[sample.rollout], 50) / len(tokens)
            total = total - float(turn.advantages) * share * chosen
    return torch.cat([x.flatten() for x in torch.autograd.grad(total, [*model.parameters()])])


def test_autocast_around_a_loss_is_that_of_the_own_forward(tokenizer: Any) -> None:
    model = tiny()
    rollouts, rewards = played(model, tokenizer, (1, 1)), [1.0, 0.0]

    def gradient(lean: bool) -> Tensor:
        policy = as_policy("policy", model, tokenizer)
        policy.lean = lean
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = Learner(policy, None, GRPO()).calculate_loss(rollouts, rewards)
        loss.backward()
        return torch.cat([weight.grad.flatten() for weight in model.parameters()])

    assert torch.equal(gradient(True), gradient(False))


@pytest.mark.parametrize(
    ("adapter", "asked", "acts"),
    [(0.0, None, False), (0.0, True, True), (0.4, None, True), (0.4, False, False)],
)
def test_dropout_acts_only_when_asked(
    adapter: float, asked: bool | None, acts: bool, tokenizer: Any, tmp_path: Path
) -> None:
    """With the reference equal to the policy the first loss of DPO is ln 2; modes stay."""
    model = made("gpt2", resid_pdrop=0.2).eval()
    model.transformer.h[0].train()
    if adapter:
        shape = {"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True}
        config = LoraConfig(lora_dropout=adapter, init_lora_weights=False, **shape)
        model = get_peft_model(model, config).eval()
    modes = [module.training for module in model.modules()]
    result = DPOTrainer(
        model=model,
        tokenizer=tokenizer,
        train_dataset=PAIRS,
        num_iterations=1,
        dropout=asked,
        output_dir=str(tmp_path),
        report_to="none",
    ).train()
    first = abs(result.metrics["loss"] - math.log(2))
    assert first > 1e-4 if acts else first < 1e-6
    assert acts or result.metrics["rewards/accuracies"] == 0.5
    assert adapter or [module.training for module in model.modules()] == modes


def test_dropout_and_ties_beside_trl(tokenizer: Any, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    arguments = trl.DPOConfig(
        str(tmp_path),
        max_steps=1,
        logging_steps=1,
        per_device_train_batch_size=8,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
    )
    folder = tmp_path / "model"
    made("gpt2", resid_pdrop=0.2).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    judge = trl.DPOTrainer(
        str(folder),
        args=arguments,
        train_dataset=datasets.Dataset.from_list(PAIRS),
        processing_class=tokenizer,
    )
    judge.train()
    (row, *_) = judge.state.log_history
    assert float(row["loss"]) == pytest.approx(math.log(2), abs=1e-4)
    assert float(row["rewards/accuracies"]) in (0.0, 0.5)
