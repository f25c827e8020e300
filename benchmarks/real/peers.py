"""Time to reward of other libraries on the sums: the model, adapter, rate, batch and rewards of
`configs/real/sums.yaml` in TRL's GRPO, SFT and DPO and in CoMLRL's MAGRPO and IAC with one agent
(`team` is five steps of MAGRPO with four), a process and one thread each.

    python -m benchmarks.real.peers trl grpo SEED MODEL   # in an environment that has TRL
    python -m benchmarks.real.peers comlrl iac SEED MODEL
    python -m benchmarks.real.peers mrlm sft SEED MODEL   # the same program by `mrlm.trl`

prints a line of JSON: processor seconds of training (evaluations apart), held-out rewards and the
peak. SFT imitates the right numbers, and DPO prefers them to wrong ones, on eight rows a step.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from benchmarks.real.worlds import Sums

STEPS, EVERY = 25, 5
TEAM_STEPS = 5
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
        print(self.seconds, self.rewards, file=sys.stderr, flush=True)
        self.apart += time.process_time() - start

    def prompt(self, question: str) -> str:
        """A question as the model's template has it."""
        messages = [{"role": "user", "content": question}]
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )


def dataset_rows(method: str, seed: int) -> list[dict[str, Any]]:
    """Sums as rows of a dataset: questions, with right answers, or with right and wrong ones."""
    wrong = random.Random(seed)
    rows = []
    for row in Sums._rows(2, PROMPTS * STEPS if method != "grpo" else 400, 1):
        question = [{"role": "user", "content": row["question"]}]
        right = [{"role": "assistant", "content": row["answer"]}]
        other = str(int(row["answer"]) + wrong.choice([-11, -10, -2, -1, 1, 2, 10, 11]))
        if method == "sft":
            rows.append({"prompt": question, "completion": right})
        elif method == "dpo":
            rejected = [{"role": "assistant", "content": other}]
            rows.append({"prompt": question, "chosen": right, "rejected": rejected})
        else:
            rows.append({"prompt": question, "answer": row["answer"]})
    return rows


class Evaluation(TrainerCallback):
    """Measures the model before training and after every fifth step.

    Args:
        curve: what measures.
    """

    def __init__(self, curve: Curve) -> None:
        self.curve = curve

    def on_train_begin(self, *arguments: Any, model: Any, **_: Any) -> None:
        self.curve.began = time.process_time()
        self.curve.measure(model)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        if state.global_step % EVERY == 0:
            self.curve.measure(model)


def trl_words(method: str, seed: int, folder: str) -> dict[str, Any]:
    """TRL's settings, as its users would set them for speed: no checkpoints, no report, no
    reference."""
    words: dict[str, Any] = {
        "output_dir": folder,
        "per_device_train_batch_size": PROMPTS * SAMPLES if method == "grpo" else PROMPTS,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "max_steps": STEPS,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": seed,
    }
    if method == "grpo":
        words |= {"num_generations": SAMPLES, "max_completion_length": TOKENS}
        words |= {"temperature": 1.0, "beta": 0.0}
    elif method == "dpo":
        words |= {"beta": 0.1}
    return words


def trl(library: str, method: str, seed: int, name: str, folder: str) -> Curve:
    """TRL's trainers."""
    classes = importlib.import_module("mrlm.trl" if library == "mrlm" else "trl")
    curve = Curve(AutoTokenizer.from_pretrained(name))

    def rewards(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
        return [reward(text[0]["content"], a) for text, a in zip(completions, answer, strict=True)]

    more: dict[str, Any] = {"reward_funcs": rewards} if method == "grpo" else {}
    getattr(classes, f"{method.upper()}Trainer")(
        model=name,
        args=getattr(classes, f"{method.upper()}Config")(**trl_words(method, seed, folder)),
        train_dataset=Dataset.from_list(dataset_rows(method, seed)),
        peft_config=LORA,
        callbacks=[Evaluation(curve)],
        **more,
    ).train()
    return curve


def comlrl(library: str, method: str, seed: int, name: str, folder: str) -> Curve:
    """CoMLRL with one agent, or with four that all answer, for which the mean reward counts and
    the first one is evaluated. Its buffer counts prompts in MAGRPO, so that it updates when as many
    answers were sampled as here, and answers in IAC; it asks for the reward of each by itself."""
    agents, steps = (4, TEAM_STEPS) if method == "team" else (1, STEPS)
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(name)
    # it takes the first padding token of a prompt for its end, and chat prompts have end tokens
    tokenizer.pad_token = "<|endoftext|>"
    models: list[Any] = [
        get_peft_model(AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32), LORA)
        for _ in range(agents)
    ]
    curve = Curve(tokenizer)
    rows = Sums._rows(2, 400, 1)
    random.Random(seed).shuffle(rows)
    answers = {curve.prompt(row["question"]): row["answer"] for row in rows}
    siblings = 1 if method == "iac" else SAMPLES
    batch = PROMPTS * SAMPLES // siblings
    asked = 0

    def rewards(*completions: Any, batch_items: Any = None, **_: Any) -> list[float]:
        nonlocal asked
        if asked % (PROMPTS * SAMPLES * EVERY) == 0:
            curve.measure(models[0])
        asked += len(completions[0])
        answer = batch_items[0]["answer"]
        values = [[reward(text, answer) for text in texts] for texts in completions]
        return [sum(team) / agents for team in zip(*values, strict=True)]

    tasks = list(answers.items())
    tasks = (tasks * (batch * steps // len(tasks) + 1))[: batch * steps]
    trainer_class, config, more = _comlrl_parts(library, method, siblings, batch, models)
    trainer: Any = trainer_class(
        tokenizer=tokenizer,
        train_dataset=Dataset.from_list(
            [{"prompt": prompt, "answer": answer} for prompt, answer in tasks]
        ),
        reward_func=rewards,
        formatters=[lambda item, **_: item["prompt"]] * agents,
        args=config,
        **more,
    )
    trainer.verbose = False
    curve.began = time.process_time()
    trainer.train()
    curve.measure(models[0])
    return curve


def _comlrl_parts(
    library: str, method: str, siblings: int, batch: int, models: list[Any]
) -> tuple[Any, Any, dict[str, Any]]:
    """The trainer's class, its config, and its arguments that depend on the algorithm."""
    package = "mrlm.comlrl" if library == "mrlm" else "comlrl.trainers"
    if library != "mrlm":
        package += ".actor_critic" if method == "iac" else ".reinforce"
    classes = importlib.import_module(package)
    words: dict[str, Any] = {
        "num_train_epochs": 1,
        "num_agents": len(models),
        "agent_learning_rate": RATE,
        "num_generations": siblings,
        "max_new_tokens": TOKENS,
        "num_turns": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "eval_interval": 0,
        "rollout_buffer_size": batch,
        "train_batch_size": batch,
        "early_termination_threshold": None,
        "parallel_training": "none",
    }
    if library != "mrlm":
        words |= {"agent_devices": ["cpu"] * len(models)}
    more: dict[str, Any] = {"agents": models}
    if method != "iac":
        words |= {"top_k": 0}
        more |= {"num_agents": len(models)}
    else:  # the critic is a head on the agent's own model, as in configs/real/sums_ppo.yaml
        words |= {"critic_learning_rate": RATE, "use_separate_critic": False}
        if library != "mrlm":
            heads = importlib.import_module("comlrl.models.actor_critic")
            (model,) = models
            more = {"agents": [heads.CausalLMWithValueHead(model, attach_value_head=True)]}
    name = "IAC" if method == "iac" else "MAGRPO"
    config = getattr(classes, f"{name}Config")(**words)
    return getattr(classes, f"{name}Trainer"), config, more


METHODS: dict[str, Callable[[str, str, int, str, str], Curve]] = {
    **dict.fromkeys(("grpo", "sft", "dpo"), trl),
    **dict.fromkeys(("magrpo", "iac", "team"), comlrl),
}


if __name__ == "__main__":
    library, method, seed, model = sys.argv[1:]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="mrlm-peer-") as folder:
        model = str(Path(model).resolve())
        os.chdir(folder)  # runs side by side write into folders of their own
        curve = METHODS[method](library, method, int(seed), model, folder)
    row = {"library": library, "method": method, "seed": int(seed), "seconds": curve.seconds}
    row |= {"rewards": curve.rewards}
    row["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(row))
