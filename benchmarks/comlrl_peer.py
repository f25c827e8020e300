"""CoMLRL on fixed work: MAGRPO and IAC, one prompt per step, which is all that they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from comlrl.trainers.actor_critic import IACConfig, IACTrainer
from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer

from benchmarks.models import PAD, make_model, make_tokenizer
from benchmarks.timing import Stepwise
from benchmarks.work import Counts, Work
from benchmarks.worlds import prompt_text, reward_of


class _Counter:
    """Counts the tokens that models are asked to read and to sample; who trains adds what it
    trains on."""

    def __init__(self, models: list[Any]) -> None:
        self.clear()
        for model in {id(model): model for model in models}.values():
            model.generate = self._counted(model.generate)

    def _counted(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            output = generate(*args, **kwargs)
            sequences = output if hasattr(output, "shape") else output.sequences
            prompt = kwargs["input_ids"].shape[1]
            self.read += prompt * len(sequences)
            self.sampled += (sequences.shape[1] - prompt) * len(sequences)
            return output

        return counted

    def clear(self) -> None:
        """Begin at nothing."""
        self.read = self.sampled = self.trained = 0

    @property
    def counts(self) -> Counts:
        return Counts(self.read, self.sampled, self.trained)


class _Magrpo:
    """One prompt per step: the tree of joint answers, then one update per agent (and turn)."""

    def __init__(self, work: Work, device: str) -> None:
        self.work, self.seed = work, 0
        models = _models(work, device)
        self._counter = _Counter(models)
        nodes = sum(work.group**turn for turn in range(work.turns))  # of a prompt's tree
        self.trainer: Any = self._counting()(
            agents=models,
            num_agents=work.agents,
            tokenizer=_tokenizer(work),
            train_dataset=[{"prompt": "", "seed": 0}],
            reward_func=_reward,
            formatters=_formatters(work),
            external_transition=lambda agent_completions, **_: (
                ["".join(agent_completions)] * work.agents
            ),
            args=MAGRPOConfig(
                num_train_epochs=1,
                num_agents=work.agents,
                agent_devices=device,
                num_generations=work.group,
                max_new_tokens=work.written,
                num_turns=work.turns,
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                eval_interval=0,
                rollout_buffer_size=nodes,
                early_termination_threshold=None,
            ),
        )
        self.trainer.verbose = False

    def step(self) -> None:
        self.seed += 1
        self._counter.clear()
        self.trainer._train_step_returns({"prompt": "", "seed": self.seed})

    def counts(self) -> Counts:
        return self._counter.counts

    def _counting(self) -> type:
        counter = self._counter

        class Counting(MAGRPOTrainer):
            def _compute_loss_with_gradients(self, agent: Any, data: Any, returns: Any) -> Any:
                counter.trained += sum(len(tokens) for tokens in data["completion_input_ids"][0])
                return super()._compute_loss_with_gradients(agent, data, returns)

        return Counting


class _Iac:
    """One prompt per step: every agent answers, values are read, then one update per agent."""

    def __init__(self, work: Work) -> None:
        self.work, self.seed = work, 0
        models = _models(work)
        self._counter = _Counter(models)
        self.trainer = IACTrainer(
            agents=models,
            tokenizer=_tokenizer(work),
            train_dataset=[{"prompt": "", "seed": 0}],
            reward_func=_reward,
            formatters=_formatters(work),
            args=IACConfig(
                num_agents=work.agents,
                num_turns=1,
                num_generations=work.group,
                max_new_tokens=work.written,
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                use_separate_critic=False,
                rollout_buffer_size=work.group,
                eval_interval=0,
            ),
        )

    def step(self) -> None:
        self.seed += 1
        self._counter.clear()
        rollouts = self.trainer._collect_rollouts({"prompt": "", "seed": self.seed})
        for agent in range(self.work.agents):
            own = [rollout for rollout in rollouts if rollout.agent_idx == agent]
            self.trainer._update(agent, own)
            self._counter.trained += sum(rollout.response_len for rollout in own)

    def counts(self) -> Counts:
        return self._counter.counts


def magrpo(work: Work, device: str = "cpu") -> Stepwise:
    """MAGRPO; with `weights="shared"` all agents are one module. It computes in the type of the
    weights, so that these are bfloat16 where that is the precision."""
    return Stepwise(_Magrpo(work, device))


def iac(work: Work) -> Stepwise:
    """Independent actor-critic with a value head on each agent's own model."""
    return Stepwise(_Iac(work))


def _models(work: Work, device: str = "cpu") -> list[Any]:
    dtype = torch.bfloat16 if work.precision == "bf16" else torch.float32
    if work.weights == "shared":
        return [make_model(work.shape, device=device, dtype=dtype)] * work.agents
    return [make_model(work.shape, seed, device, dtype) for seed in range(work.agents)]


def _tokenizer(work: Work) -> Any:
    """A completion is cut at the first padding token, so that one must never be drawn either."""
    tokenizer = make_tokenizer(work.shape)
    tokenizer.pad_token = tokenizer.eos_token
    assert tokenizer.pad_token != PAD
    return tokenizer


def _formatters(work: Work) -> list[Callable[..., str]]:
    """What each agent reads: its own prompt of the step's seed, and of what was said last."""

    def formatter(agent: str) -> Callable[..., str]:
        def text(item: dict[str, Any], external_prompts: Any = None) -> str:
            return prompt_text(work.shape, work.read, item["seed"], agent, external_prompts or "")

        return text

    return [formatter(agent) for agent in work.names]


def _reward(*completions: Any, **_: Any) -> list[float]:
    """One reward per joint answer: the list of every agent's answers, in order."""
    return [reward_of("".join(texts)) for texts in zip(*completions, strict=True)]
