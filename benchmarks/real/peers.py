"""Time to reward of other libraries on the sums: the model, adapter, rate, batch and rewards of
`configs/real/sums.yaml` in TRL's GRPO and CoMLRL's MAGRPO (one agent), a process and one thread
each.

    python -m benchmarks.real.peers trl SEED MODEL    # in an environment that has TRL
    python -m benchmarks.real.peers comlrl SEED MODEL

prints a line of JSON: processor seconds of training (evaluations apart), held-out rewards and the
peak.
"""

from __future__ import annotations

import json
import random
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from benchmarks.real.worlds import Sums

STEPS, EVERY = 25, 5
PROMPTS, SAMPLES, TOKENS, RATE = 8, 4, 12, 2e-4
LORA = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")


def reward(text: str, answer: str) -> float:
    """1 for the right number, 0 for another, -0.3 for none."""
    numbers = re.findall(r"-?\d+\.?\d*", text)
    return float(numbers[-1].rstrip(".") == answer) if numbers else -0.3


class Curve:
    """What a run is measured by.

    Args:
        tokenizer: of the model.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.rows = Sums._rows(2, 64, 2)
        self.seconds: list[float] = []
        self.rewards: list[float] = []
        self.apart = 0.0
        self.began = time.process_time()

    def measure(self, model: Any) -> None:
        """The mean reward of greedy answers to the held-out rows; its time does not count."""
        start = time.process_time()
        self.seconds.append(round(start - self.began - self.apart, 1))
        prompts = [self.prompt(row["question"]) for row in self.rows]
        batch = self.tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
        training = model.training
        model.eval()
        with torch.no_grad():
            ids = model.generate(**batch, do_sample=False, max_new_tokens=TOKENS)
        model.train(training)
        answers = self.tokenizer.batch_decode(
            ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
        )
        rewards = [
            reward(text, row["answer"]) for text, row in zip(answers, self.rows, strict=True)
        ]
        self.rewards.append(round(sum(rewards) / len(rewards), 4))
        self.apart += time.process_time() - start

    def prompt(self, question: str) -> str:
        """A question as the model's template has it."""
        messages = [{"role": "user", "content": question}]
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )


def trl(seed: int, name: str, folder: str) -> Curve:
    """GRPO of TRL, as its users would set it for speed: no checkpoints, no report, no reference."""
    from trl import GRPOConfig, GRPOTrainer

    curve = Curve(AutoTokenizer.from_pretrained(name))

    class Evaluation(TrainerCallback):
        def on_train_begin(self, *arguments: Any, model: Any, **_: Any) -> None:
            curve.began = time.process_time()
            curve.measure(model)

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
            if state.global_step % EVERY == 0:
                curve.measure(model)

    def rewards(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
        return [reward(text[0]["content"], a) for text, a in zip(completions, answer, strict=True)]

    rows = [
        {"prompt": [{"role": "user", "content": row["question"]}], "answer": row["answer"]}
        for row in Sums._rows(2, 400, 1)
    ]
    args = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=PROMPTS * SAMPLES,
        num_generations=SAMPLES,
        max_completion_length=TOKENS,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_steps=STEPS,
        temperature=1.0,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        seed=seed,
    )
    GRPOTrainer(
        model=name,
        args=args,
        reward_funcs=rewards,
        train_dataset=Dataset.from_list(rows),
        peft_config=LORA,
        callbacks=[Evaluation()],
    ).train()
    return curve


def comlrl(seed: int, name: str, folder: str) -> Curve:
    """MAGRPO of CoMLRL with one agent. Its buffer counts prompts, so that it updates when as many
    answers were sampled as here; it asks for the reward of each answer by itself."""
    from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer

    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(name)
    # it takes the first padding token of a prompt for its end, and chat prompts have end tokens
    tokenizer.pad_token = "<|endoftext|>"
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32), LORA)
    curve = Curve(tokenizer)
    rows = Sums._rows(2, 400, 1)
    random.Random(seed).shuffle(rows)
    answers = {curve.prompt(row["question"]): row["answer"] for row in rows}
    asked = 0

    def rewards(*completions: Any, batch_items: Any = None, **_: Any) -> list[float]:
        nonlocal asked
        if asked % (PROMPTS * SAMPLES * EVERY) == 0:
            curve.measure(model)
        asked += len(completions[0])
        return [reward(text, batch_items[0]["answer"]) for text in completions[0]]

    trainer: Any = MAGRPOTrainer(
        agents=[model],
        num_agents=1,
        tokenizer=tokenizer,
        train_dataset=Dataset.from_list(
            [{"prompt": prompt, "answer": answer} for prompt, answer in answers.items()][
                : PROMPTS * STEPS
            ]
        ),
        reward_func=rewards,
        formatters=[lambda item, **_: item["prompt"]],
        args=MAGRPOConfig(
            num_train_epochs=1,
            num_agents=1,
            agent_learning_rate=RATE,
            num_generations=SAMPLES,
            max_new_tokens=TOKENS,
            num_turns=1,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            eval_interval=0,
            rollout_buffer_size=PROMPTS,
            train_batch_size=PROMPTS,
            early_termination_threshold=None,
            parallel_training="none",
            agent_devices=["cpu"],
        ),
    )
    trainer.verbose = False
    curve.began = time.process_time()
    trainer.train()
    curve.measure(model)
    return curve


LIBRARIES: dict[str, Callable[[int, str, str], Curve]] = {"trl": trl, "comlrl": comlrl}


if __name__ == "__main__":
    library, seed, model = sys.argv[1:]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="mrlm-peer-") as folder:
        curve = LIBRARIES[library](int(seed), model, folder)
    row = {"library": library, "seed": int(seed), "seconds": curve.seconds}
    row |= {"rewards": curve.rewards}
    row["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(row))
