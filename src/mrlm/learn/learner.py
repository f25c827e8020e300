"""The learner of one policy: annotates turns, computes the loss and steps the optimiser."""

import math
import random
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from mrlm.core.chat import Chat
from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError, ModelError
from mrlm.core.timing import count, span
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.bases.spec import Spec
from mrlm.learn.columns import annotate, rescore
from mrlm.learn.credit.user_rollouts import Play, RolloutReader, TeamReward, as_planned
from mrlm.learn.critics.critic import Critic
from mrlm.learn.data.batch import Batch, Loss, Sample, Totals, pack
from mrlm.learn.data.data_parallel import micro_batches, nothing
from mrlm.learn.data.first_pass import FirstPass
from mrlm.learn.data.privileged import reveal
from mrlm.learn.data.samples import effective_part, minibatches
from mrlm.learn.fast.packed_pass import LossOf
from mrlm.learn.gradient_parts import Gradient, part_of
from mrlm.learn.joint_update import StepSums, Updating, Work, tried, update_together
from mrlm.learn.loss_tensor import LossTensor, host_numbers
from mrlm.learn.meter import Measured
from mrlm.learn.mismatch import loss_mismatch
from mrlm.learn.no_gradient import check_gradient, watch_gradient
from mrlm.learn.optimizer import LearnerSettings, Trainee
from mrlm.learn.policy.copies import beside, catch_up
from mrlm.learn.policy.incoming import make_trainable
from mrlm.learn.policy.policy import Policy, as_policy
from mrlm.learn.policy.quantized import UNTRAINED, is_quantized
from mrlm.learn.policy.randomness import seed_generators
from mrlm.learn.policy.reference import check_size, load_reference, renew
from mrlm.learn.policy.remote_teacher import RemoteTeacher
from mrlm.learn.update_meter import SKIPPED, UpdateMeter


class Learner(Trainee):
    """Trains one policy.

    In a custom loop: `loss = Learner(model, tokenizer, GRPO()).calculate_loss(rollouts, rewards)`,
    then `loss.backward()` and a step of an optimiser over `learner.parameters()`. The model is
    never wrapped or cast, and copied only for a frozen reference, if the algorithm needs one and
    none is given, and for a separate critic (for an adapter: a second adapter on the same base).

    Args:
        model: a causal language model, a PEFT model (its active adapter is trained) or a `Policy`.
        algorithm: credit and loss.
        agents: names of the trained agents; all if `None`.
        reference: a frozen model for algorithms with a reference.
        critic: the network that a separate critic starts from; a copy of the policy if `None`.
        settings: optimisation settings of `update`; not used by `calculate_loss`.

    Raises:
        ConfigError: no algorithm, or the model does not fit it.
    """

    counters: ClassVar[tuple[str, ...]] = ("version", "nonfinite")
    heads_suffice: ClassVar[bool] = False

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        algorithm: Algorithm | None = None,
        *,
        agents: Sequence[str] | None = None,
        reference: Any = None,
        critic: Policy | None = None,
        settings: LearnerSettings | None = None,
    ) -> None:
        if algorithm is None:
            raise ConfigError("Learner needs an algorithm: Learner(model, tokenizer, GRPO())")
        policy = as_policy("policy", model, tokenizer, reference)
        if policy.adapter:
            make_trainable(policy.model, policy.adapter)
        elif is_quantized(policy.model):
            raise ModelError(f"policy {policy.name!r}: {UNTRAINED} (a peft.LoraConfig)")
        super().__init__(policy, settings or LearnerSettings(), f"policy {policy.name!r}")
        self.weights_of: Policy = policy
        self.algorithm = algorithm
        self.spec: Spec = (spec := algorithm.spec)
        self.agents: frozenset[str] | None = None if agents is None else frozenset(agents)
        self.version: int = 0
        self.critic: Critic | None = None
        self._first = FirstPass()
        self.mirror: Policy | None = None
        """A copy that engines sample from during training."""
        if spec.scalar_head or ("values" in spec.columns and spec.critic.topology == "shared"):
            policy.add_value_head()
        elif "values" in spec.columns and spec.critic.topology == "separate":
            self.critic = Critic(self.policy, critic or beside(policy), self.settings)
        if spec.endpoint is not None:
            policy.remote_teacher = RemoteTeacher(spec.endpoint, spec.top_k)
        if spec.distils and not isinstance(model, Policy):
            if reference is None:
                algorithm.check_agents({policy.name: policy.name}, 2)
            elif spec.reference or spec.endpoint:
                raise ConfigError("set either the algorithm's teacher or reference=, not both")
        if spec.has_reference:
            loaded = policy.reference is not None or bool(policy.reference_adapter)
            if (source := spec.reference_of(policy.name)) is not None and not loaded:
                load_reference(policy, source)
            policy.keep_reference()
            if spec.compares:
                check_size(policy, policy.reference, "reference")

    @property
    def policy(self) -> str:
        return self.weights_of.name

    @property
    def chat(self) -> Chat:
        """The tokenizer with its chat template."""
        return self.weights_of.chat

    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters of the policy, its heads and its critic, for an optimiser."""
        beside_it = [] if self.critic is None else self.critic.body.parameters()
        return [*self.weights_of.parameters(), *beside_it]

    def renew_reference(self) -> None:
        """Makes the current policy its own reference."""
        renew(self.weights_of)

    def weights(self) -> Policy:
        """Weights for an engine: the live ones, or a copy of their current state if engines sample
        during training or the policy is sharded (then collective: every rank must call it)."""
        storage = self.weights_of.storage
        if storage.sharded or self.mirror is None:
            storage.refresh()
            return storage.whole
        catch_up(self.mirror, self.weights_of)
        return self.mirror

    def batch(
        self,
        rollouts: Sequence[Play | Group],
        rewards: Sequence[TeamReward] | None = None,
        group_by: Callable[[Any], Any] | None = None,
    ) -> Batch:
        """Packs rollouts with credit as `calculate_loss` does. Arguments as there."""
        return self.packed(self._credited(rollouts, rewards, group_by)[1])

    def calculate_loss(
        self,
        rollouts: Sequence[Play | Group],
        rewards: Sequence[TeamReward] | None = None,
        group_by: Callable[[Any], Any] | None = None,
    ) -> LossTensor:
        """Computes the loss of rollouts, a scalar tensor with `loss.metrics`; only MODEL messages
        are trained on.

        The first loss of a rollout starts its update: later ones use its log-probs and values as
        the old ones (the ratio of PPO and GRPO), until `forget` is called or it is deleted.

        Args:
            rollouts: built by hand or by a `Generator`. A rollout with messages of several agents
                is an episode; so is a mapping agent -> rollout. Episodes and groups of a trainer
                are used unchanged.
            rewards: one team reward per rollout, which every agent gets for its last turn (or agent
                -> its own). Rollouts with a reward that is `None` or not finite are skipped.
                `None`: the turns' own rewards.
            group_by: key of the rollouts that are compared; by default `task_id`, else the messages
                before the first MODEL message. If every group would have one member, all rollouts
                are one group.

        Raises:
            ConfigError: wrong number of rewards, none finite, or one rollout in a group baseline.
        """
        groups, samples = self._credited(rollouts, rewards, group_by)
        loss = self.loss_of(samples)
        total, metrics = loss.total, dict(loss.metrics)
        if self.critic is not None:
            value = self.critic.loss(groups, self.algorithm, self.weights_of.across)
            total, metrics["value_loss"] = total + value, value.detach()
        return LossTensor.of(total, metrics)

    def packed(self, samples: Sequence[Sample]) -> Batch:
        """Packs samples with credit into one batch."""
        across = self.weights_of.across
        totals = None if across is None else across.totals(samples)
        return pack(samples, totals, self.weights_of.pad_id, self.weights_of.device)

    def loss_of(self, samples: Sequence[Sample]) -> Loss:
        """The loss of samples with credit as one batch; `calculate_loss` takes rollouts."""
        batch, across = self.packed(samples), self.weights_of.across
        if self.spec.compares:
            batch.reference = self.weights_of.reference_distributions(batch)
        outputs = self.weights_of.forward(batch, self.spec.entropy)
        loss = self.algorithm.loss(batch, outputs)
        if across is not None:
            total = across.averaged(loss.total * across.size, self.weights_of.parameters())
            loss = Loss(total, {name: value * across.size for name, value in loss.metrics.items()})
        else:
            watch_gradient(loss.total, self.weights_of, samples, self.algorithm)
        return Loss(loss.total, loss.metrics | loss_mismatch(self.weights_of, batch, outputs))

    def forget(self) -> None:
        """Starts a new update: the next loss takes the current policy as the old one."""
        self._first.forget()

    def _credited(
        self,
        rollouts: Sequence[Play | Group],
        rewards: Sequence[TeamReward] | None,
        group_by: Callable[[Any], Any] | None,
    ) -> tuple[list[Group], list[Sample]]:
        """The groups of rollouts with credit, and their samples."""
        if self.spec.critic.of_team:
            raise ConfigError(
                f"{type(self.algorithm).__name__} needs a critic that sees every agent, but a "
                "Learner has one policy; use TeamLearner({agent: (model, tokenizer)}, algorithm)"
            )
        self.check_trainable()
        reader = RolloutReader(self.policy, self.chat, self.agents)
        groups, sources = reader.groups(rollouts, rewards, group_by)
        groups = as_planned(groups, self.spec.sampling, type(self.algorithm).__name__)

        def compute() -> None:
            annotate(self.weights_of, self.settings, self.spec, groups, self.spec.columns)
            if self.critic is not None:
                self.critic.annotate(groups)

        self.reveal(groups)
        self._first.fill(sources, compute)
        self.algorithm.credit(groups)
        samples = self.algorithm.samples(groups, self.policy)
        if not samples:
            raise ConfigError(
                "nothing to train on: no rollout has a MODEL message of a trained agent"
            )
        return groups, samples

    def reveal(self, groups: Sequence[Group]) -> None:
        """Writes the prompts of a teacher that reads more on this policy's turns."""
        if self.spec.reveals:
            reveal(groups, self.policy, self.chat, self.spec.reveals, self.weights_of.max_context)

    async def annotate(self, groups: Sequence[Group], needs: Iterable[str]) -> None:
        """Writes the columns in `needs` (of `ANNOTATED`) on this policy's turns."""
        self.reveal(groups)
        annotate(self.weights_of, self.settings, self.spec, groups, frozenset(needs))

    async def rescore(self, groups: Sequence[Group]) -> None:
        """Writes `new_logprobs`, under the current weights, on this policy's turns."""
        rescore(self.weights_of, self.settings, groups)

    async def update(
        self, samples: Sequence[Sample], algorithm: Algorithm, step: int, seed: int
    ) -> Measured:
        """Trains on credited samples for the algorithm's epochs of `num_minibatches` optimiser
        steps; returns metrics, averaged over these. `step` is the iteration of the learning rate
        schedule, `seed` that of the order of mini-batches and of dropout."""
        (metrics,) = await update_together([(self, samples, seed)], algorithm, step)
        return metrics

    def steps(
        self, samples: Sequence[Sample], algorithm: Algorithm, step: int, seed: int
    ) -> Updating:
        """`update` as a generator that yields its micro-batches, so that they can be computed
        jointly with those of other learners; the model is already in training mode."""
        if not samples:
            return Measured()
        rank, device = self.settings.peers.rank, self.weights_of.device
        reseed = partial(seed_generators, (seed >> 1) + rank, device)
        reseed()
        rng, rate = random.Random(seed), self.stepper.begin(step)
        start = self.stepper.own, algorithm, self.settings, self.version, step
        meter = UpdateMeter(self.weights_of, *start)
        yield from meter.read(samples)
        for _ in range(algorithm.update_epochs):
            for minibatch in minibatches(samples, algorithm.num_minibatches, rng):
                chosen, totals = effective_part(minibatch, algorithm.spec.ignores_zero)
                if not chosen:
                    meter.add_step(SKIPPED)
                    continue
                if meter.split:
                    yield from self._gradient_parts(chosen, totals, meter, reseed)
                meter.add_step((yield from self._optimizer_step(chosen, totals, meter)))
            if meter.end_epoch():
                break
        self.version += 1
        sums = yield StepSums(self.policy, [], meter.table())
        return meter.metrics(sums, rate)

    def _gradient_parts(
        self,
        samples: Sequence[Sample],
        totals: Totals,
        meter: UpdateMeter,
        reseed: Callable[[], None],
    ) -> Generator[Work | StepSums, Any, None]:
        """Measures the gradient of a mini-batch by agent, one pass for each. `reseed` gives them
        the dropout of the step that follows."""
        parts: dict[str, Gradient | None] = dict.fromkeys(sorted(meter.measured.tokens))
        parameters, algorithm = self.stepper.weights, meter.algorithm
        present = Totals.of(samples).tokens_by_agent
        for agent in parts:
            if agent not in present:
                continue
            reseed()
            yield from self._backward(samples, totals, algorithm, part_of(agent, algorithm.loss))
            yield StepSums(self.policy, parameters, {})
            parts[agent] = [parameter.grad for parameter in parameters]
        self.stepper.clear()
        reseed()
        meter.add_gradients(parts)

    def _backward(
        self, samples: Sequence[Sample], totals: Totals, algorithm: Algorithm, loss_of: LossOf
    ) -> Generator[Work, Loss, dict[str, float]]:
        """The gradient of a mini-batch of any number of micro-batches; returns the loss and its
        metrics on this rank."""
        self.stepper.clear()
        sums: dict[str, Tensor | float] = {}
        settings, policy = self.settings, self.weights_of
        micros = micro_batches(policy, settings, samples, totals, settings.accumulation)
        for batch, real, last in micros:
            if algorithm.spec.compares and real:
                batch.reference = policy.reference_distributions(batch)
            loss = yield Work(
                policy,
                batch,
                loss_of if real else nothing,
                self.stepper.backward,
                algorithm.spec.entropy,
                settings.max_tokens,
                last,
            )
            for key, value in {"loss": loss.total, **loss.metrics}.items():
                sums[key] = sums.get(key, 0.0) + value
        return host_numbers(sums)

    def _optimizer_step(
        self, samples: Sequence[Sample], totals: Totals, meter: UpdateMeter
    ) -> Generator[Work | StepSums, Any, dict[str, float]]:
        """One optimiser step on the samples of a mini-batch that have a gradient; `totals` are
        those of the whole mini-batch."""
        algorithm = meter.algorithm
        gradient = partial(self._backward, samples, totals, algorithm, meter.loss)
        metrics = yield from tried(gradient, self.shrink, meter.records)
        metrics = yield StepSums(self.policy, self.stepper.weights, metrics)
        with span("optimizer", self.policy):
            limit = self.settings.max_tokens
            check = partial(check_gradient, self.weights_of, samples, algorithm, limit)
            metrics["grad_norm"], finite = self.finish_step(metrics, samples, check)
        for agent, tokens in Totals.of(samples).tokens_by_agent.items():
            count("trained", agent, tokens)
        finite_metrics = {key: value for key, value in metrics.items() if math.isfinite(value)}
        return finite_metrics | {"nonfinite_steps": float(not finite)}
