"""Builds a learner for every trained policy and the critics that an algorithm requires, with their
optimiser settings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mrlm.build.policies import PlayPlan, load_with
from mrlm.config import PolicyConfig
from mrlm.core.errors import ConfigError
from mrlm.distributed.learning_job import LearningJob
from mrlm.learn.critics.critic import CentralCritic, Critic
from mrlm.learn.critics.mixing_critic import MIXER_LEARNING_RATE, MixedCritic
from mrlm.learn.learner import Learner
from mrlm.learn.optimizer import LearnerSettings
from mrlm.learn.policy.copies import beside, frozen_beside
from mrlm.learn.policy.loading import load_tokenizer
from mrlm.learn.policy.policy import Policy, random_forward
from mrlm.play.agent import seed_of

TEAM = "team"
"""Key of a team's critic among `LiveObjects.critics`."""


def make_learners(
    plan: PlayPlan, policies: Mapping[str, Policy], job: LearningJob
) -> list[Learner]:
    """One learner per trained policy."""
    learners = [
        Learner(
            policies[name],
            None,
            job.algorithm,
            critic=_own_critic(plan, policies[name], job),
            settings=_settings(plan, section, job),
        )
        for name, section in plan.assignment.policies.items()
        if section.trainable
    ]
    dropout_set = plan.config.training.dropout and not plan.parts.usual  # TRL accepts it anywhere
    if dropout_set and not any(random_forward(section.weights_of) for section in learners):
        raise ConfigError(
            "training.dropout=true (disable_dropout=False): changes nothing because no trained "
            "model has dropout; remove it"
        )
    return learners


def make_critics(
    plan: PlayPlan, learners: Sequence[Learner], policies: Mapping[str, Policy], job: LearningJob
) -> list[Critic]:
    """The critics beside the policies, or the one of the team."""
    config, critic = plan.config, job.algorithm.spec.critic
    if not critic.of_team:
        return [learner.critic for learner in learners if learner.critic is not None]
    mixed = critic.topology == "mixed"
    policy = learners[0].weights_of
    body = _given_critic(plan, policy, of_team=True) or (frozen_beside if mixed else beside)(policy)
    settings = _settings(plan, PolicyConfig(), job)
    chats = {name: policy.chat for name, policy in policies.items()}
    if not mixed:
        return [CentralCritic(body, settings, chats)]
    rate = settings.critic_learning_rate or MIXER_LEARNING_RATE
    seed, agents = seed_of((config.training.seed, "mixer")) >> 1, list(plan.assignment.policy_of)
    settings = replace(settings, critic_learning_rate=rate)
    return [MixedCritic(body, settings, chats, agents, critic.mixing, seed)]


def _settings(plan: PlayPlan, policy: PolicyConfig, job: LearningJob) -> LearnerSettings:
    """Optimiser settings of a network: from the policy's section, else from `training`."""
    training = plan.config.training
    clip = training.max_grad_norm if policy.max_grad_norm is None else policy.max_grad_norm
    rate = policy.learning_rate or training.learning_rate or job.algorithm.learning_rate
    return LearnerSettings(
        learning_rate=rate,
        critic_learning_rate=training.critic_learning_rate,
        optimizer=training.optimizer,
        betas=(training.adam_beta1, training.adam_beta2),
        weight_decay=training.weight_decay if policy.weight_decay is None else policy.weight_decay,
        master_weights=training.master_weights,
        offload=training.optimizer_offload,
        max_grad_norm=clip,
        schedule=training.lr_scheduler_type,
        warmup_steps=training.warmup(job.total),
        total_steps=job.total,
        max_tokens=job.max_tokens,
        shrinks=training.max_tokens_per_microbatch == "auto",
        accumulation=training.gradient_accumulation_steps,
        dropout=training.dropout,
        gradient_checkpointing=training.gradient_checkpointing,
        max_nonfinite_steps=training.max_nonfinite_steps,
        gradient_shares=training.gradient_shares,
        dump_folder=job.folder,
        peers=plan.peers,
    )


def _own_critic(plan: PlayPlan, policy: Policy, job: LearningJob) -> Policy | None:
    """The network that a policy's separate critic starts from; `None`: a copy of the policy."""
    spec = job.algorithm.spec
    if "values" not in spec.columns or spec.critic.topology != "separate":
        return None
    return _given_critic(plan, policy, of_team=False)


def _given_critic(plan: PlayPlan, policy: Policy, of_team: bool) -> Policy | None:
    """The given network of a critic: a live model, or `training.critic_model`. Raises
    `ConfigError`: it knows fewer tokens than the policy."""
    section, path = plan.config.model, plan.config.training.critic_model
    live = plan.parts.critics.get(policy.name, plan.parts.critics.get(TEAM))
    if path is None and live is None:
        return None
    model, tokenizer = live or (load_with(section, str(path)), None)
    named = None if path is None else load_tokenizer(path, section.trust_remote_code)
    tokenizer = tokenizer or named or policy.tokenizer
    vocab, needed = model.config.vocab_size, len(policy.tokenizer)
    if not of_team and vocab < needed:
        raise ConfigError(
            f"critic of policy {policy.name!r}: its model knows {vocab} tokens and the policy "
            f"{needed}; give one of the same family"
        )
    return Policy("critic", model, tokenizer, precision=policy.precision, lean=section.lean)
