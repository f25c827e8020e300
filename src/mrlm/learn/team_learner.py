"""Custom PyTorch loops for a team: one loss for all its policies and critics."""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from torch import nn

from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError
from mrlm.core.log import log
from mrlm.core.sync_async import run_async
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.bases.spec import Spec
from mrlm.learn.bases.steps import carry, refine
from mrlm.learn.credit.user_rollouts import Play, TeamReader, TeamReward, as_planned
from mrlm.learn.critics.critic import CentralCritic, Critic
from mrlm.learn.critics.mixing_critic import MixedCritic
from mrlm.learn.data.batch import Batch, Loss
from mrlm.learn.data.first_pass import FirstPass
from mrlm.learn.data.own_loop_ranks import Across
from mrlm.learn.data.samples import minibatches
from mrlm.learn.learner import Learner
from mrlm.learn.loss_tensor import LossTensor
from mrlm.learn.optimizer import LearnerSettings
from mrlm.learn.policy.copies import beside, frozen_beside
from mrlm.learn.policy.policy import Policy, as_policy
from mrlm.learn.schedule import Schedule


class TeamLearner:
    """Trains the policies of several agents, with a critic of the team if the algorithm has one
    (MAPPO, HAPPO, VDN, QMIX).

    In a custom loop: `team = TeamLearner({"a": (model_a, tokenizer), "b": (model_b, tokenizer)},
    MAPPO())`, an optimiser over `team.parameters()`, and then
    `team.calculate_loss(episodes, rewards).backward()`. For algorithms with several steps per
    iteration (epochs; HAPPO's policies one after the other; VDN's critic before its policies),
    `for loss in team.losses(episodes, rewards): ...` yields them in their trainers' order.

    Args:
        agents: agent -> `(model, tokenizer)`, `(model, tokenizer, adapter)` of a PEFT model, or a
            `Policy`. Agents with the same model and adapter share one policy.
        algorithm: credit and loss.
        trained: agents that are trained; all if `None`. A critic of the team reads the others too.
        critic: `(model, tokenizer)` of the critic of the team; the first agent's model if `None`.
        settings: sizes of micro-batches for annotation; not the optimiser.
        seed: of the order of policies and mini-batches in `losses`, and of a mixer's first weights.

    Raises:
        ConfigError: no agents, unknown names in `trained`, or agents that do not fit the algorithm.
    """

    def __init__(
        self,
        agents: Mapping[str, Any],
        algorithm: Algorithm,
        *,
        trained: Sequence[str] | None = None,
        critic: Any = None,
        settings: LearnerSettings | None = None,
        seed: int = 0,
    ) -> None:
        self.algorithm = algorithm
        self.spec: Spec = algorithm.spec
        self.settings: LearnerSettings = settings or LearnerSettings()
        self.seed = seed
        self.iteration: int = 0
        policies = _policies(agents)
        self.policy_of: dict[str, Policy] = policies
        learning = _trained(agents, trained)
        algorithm.check_agents({agent: policies[agent].name for agent in learning}, len(policies))
        taught = {policies[agent].name: policies[agent] for agent in learning}
        self.learners: list[Learner] = [
            Learner(policy, None, algorithm, settings=self.settings) for policy in taught.values()
        ]
        self._reader = TeamReader(policies, frozenset(learning))
        self._first = FirstPass()
        self._warned = False
        self.critics: list[Critic] = self._critics(critic)
        if self.spec.critic.topology == "mixed" and self._across is not None:
            raise ConfigError(
                f"{type(algorithm).__name__} supports custom loops in one process only; unwrap the "
                "models, or use its trainer under torchrun"
            )

    def _critics(self, model: Any) -> list[Critic]:
        """The critics of the policies, or that of the team."""
        topology = self.spec.critic.topology
        if topology not in ("central", "mixed"):
            return [learner.critic for learner in self.learners if learner.critic is not None]
        copied = frozen_beside if topology == "mixed" else beside
        body = copied(self.learners[0].weights_of) if model is None else as_policy("critic", model)
        chats = {policy.name: policy.chat for policy in self.policy_of.values()}
        if topology == "central":
            return [CentralCritic(body, self.settings, chats)]
        agents = sorted(self._reader.trained)
        return [MixedCritic(body, self.settings, chats, agents, self.spec.critic.mixing, self.seed)]

    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters of the policies, their heads and the critics."""
        return [*self.policy_parameters(), *self.critic_parameters()]

    def policy_parameters(self) -> list[nn.Parameter]:
        """Parameters of the policies only, heads included, each once."""
        weights = [p for learner in self.learners for p in learner.weights_of.parameters()]
        return list({id(parameter): parameter for parameter in weights}.values())

    def critic_parameters(self) -> list[nn.Parameter]:
        """Those of critics with a network; for a mixer, 3e-4 is a usual learning rate."""
        return [p for critic in self.critics for p in critic.learned.parameters()]

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the latest credit assignment."""
        return dict(self.algorithm.metrics)

    def forget(self) -> None:
        """Starts a new update: the next loss takes the current policies as the old ones."""
        self._first.forget()

    @property
    def _across(self) -> Across | None:
        """The process group, if models are inside `DistributedDataParallel`."""
        return self.learners[0].weights_of.across

    def calculate_loss(
        self,
        episodes: Sequence[Play],
        rewards: Sequence[TeamReward] | None = None,
        group_by: Callable[[Any], Any] | None = None,
    ) -> LossTensor:
        """Computes the loss of all policies and critics on some episodes, a scalar tensor.

        Args:
            episodes: recorded `Episode`s, mappings agent -> rollout, or transcripts whose MODEL
                messages name their agents.
            rewards: for each episode a number that every agent gets in the last joint step, or
                agent -> its own reward; the turns' own rewards if `None`.
            group_by: key of the episodes that are compared; by default the task, else the messages
                before the first MODEL message.

        Raises:
            ConfigError: wrong number of rewards, rewards that are not finite, agents outside the
                team, or a group baseline with a single episode.
        """
        groups = self.credited(episodes, rewards, group_by)
        if self.spec.orders[0] == "sequential" and len(self.learners) > 1 and not self._warned:
            self._warned = True
            log.warning(
                "%s updates policies one after the other, but a single loss for all treats none as "
                "updated (its factors are 1); iterate "
                "`for loss in team.losses(episodes, rewards)` for its update order",
                type(self.algorithm).__name__,
            )
        losses = {
            learner.policy: learner.loss_of(samples)
            for learner in self.learners
            if (samples := self.algorithm.samples(groups, learner.policy))
        }
        if not losses:
            raise ConfigError(
                "nothing to train on: no episode has a MODEL message of a trained agent"
            )
        for critic in self.critics:
            loss = critic.loss(groups, self.algorithm, self._across)
            losses[f"critic/{critic.name}"] = Loss(loss, {"value_loss": loss.detach()})
        return _together(losses)

    def losses(
        self,
        episodes: Sequence[Play],
        rewards: Sequence[TeamReward] | None = None,
        group_by: Callable[[Any], Any] | None = None,
    ) -> Iterator[LossTensor]:
        """Yields one loss per optimiser step of an iteration, as the algorithm's trainer does; step
        the optimiser before taking the next. Critics first, in their epochs; then the policies in
        the algorithm's order, epochs and mini-batches. Arguments as in `calculate_loss`."""
        groups = self.credited(episodes, rewards, group_by, refined=False)
        rng = random.Random(self.seed * 1_000_003 + self.iteration)
        self.iteration += 1
        for critic in self.critics:
            for loss in critic.losses(groups, self.algorithm, rng, self._across):
                yield LossTensor.of(loss, {f"value_loss/critic/{critic.name}": loss.detach()})
        refine(self.algorithm, groups, self.critics)
        schedule = Schedule(order=self.spec.orders[0])
        learners = [] if self.algorithm.waiting else self.learners
        stages = schedule.stages(learners, 0, rng.getrandbits(32))
        for index, stage in enumerate(stages):
            yield from self._stage_steps(stage, groups, rng)
            waiting = [learner for later in stages[index + 1 :] for learner in later]
            carry_metrics = run_async(carry(self.algorithm, stage, waiting, groups))
            self.algorithm.metrics |= carry_metrics

    def batches(
        self,
        episodes: Sequence[Play],
        rewards: Sequence[TeamReward] | None = None,
        group_by: Callable[[Any], Any] | None = None,
    ) -> dict[str, Batch]:
        """Policy -> its batch of credited episodes, packed as in `calculate_loss`."""
        groups = self.credited(episodes, rewards, group_by)
        return {
            learner.policy: learner.packed(samples)
            for learner in self.learners
            if (samples := self.algorithm.samples(groups, learner.policy))
        }

    def credited(
        self,
        episodes: Sequence[Play],
        rewards: Sequence[TeamReward] | None = None,
        group_by: Callable[[Any], Any] | None = None,
        refined: bool = True,
    ) -> list[Group]:
        """The episodes in groups, with values and advantages on their turns. Arguments as in
        `calculate_loss`; `refined` recomputes advantages from the current critics, for algorithms
        whose critic is trained first on the same episodes (VDN, QMIX)."""
        for learner in self.learners:
            learner.check_trainable()
        groups, sources = self._reader.groups(episodes, rewards, group_by)
        groups = as_planned(groups, self.spec.sampling, type(self.algorithm).__name__)

        def annotate() -> None:
            for critic in self.critics:
                critic.annotate(groups)
            for learner in self.learners:
                run_async(learner.annotate(groups, self.spec.columns))

        for learner in self.learners:
            learner.reveal(groups)
        # the annotation of a mixed critic builds its rows
        self._first.fill(sources, annotate, again=self.spec.critic.topology == "mixed")
        self.algorithm.credit(groups)
        if refined:
            for critic in self.critics:
                if isinstance(critic, MixedCritic):
                    critic.take_returns(groups)
            refine(self.algorithm, groups, self.critics)
        return groups

    def _stage_steps(
        self, stage: Sequence[Learner], groups: Sequence[Group], rng: random.Random
    ) -> Iterator[LossTensor]:
        algorithm, left = self.algorithm, list(stage)
        for _ in range(algorithm.update_epochs):
            samples = [algorithm.samples(groups, learner.policy) for learner in left]
            parts = [[*minibatches(every, algorithm.num_minibatches, rng)] for every in samples]
            moved: dict[str, float] = {}
            for step in zip_longest(*parts):
                pairs = [(learner, part) for learner, part in zip(left, step, strict=True) if part]
                losses = {learner.policy: learner.loss_of(part) for learner, part in pairs}
                for policy, loss in losses.items():
                    moved[policy] = float(loss.metrics.get("approx_kl", 0.0))
                yield _together(losses)
            limit = math.inf if algorithm.target_kl is None else algorithm.target_kl
            left = [learner for learner in left if moved.get(learner.policy, 0.0) <= limit]


def _policies(agents: Mapping[str, Any]) -> dict[str, Policy]:
    """Agent -> its policy; agents with the same model and adapter share one."""
    if not agents:
        raise ConfigError("a team needs at least one agent: TeamLearner({'a': (model, tokenizer)})")
    policy_of: dict[str, Policy] = {}
    by_model: dict[tuple[int, str | None], Policy] = {}
    for agent, entry in agents.items():
        policy = as_policy(agent, entry)
        policy_of[agent] = by_model.setdefault((id(policy.model), policy.adapter), policy)
    return policy_of


def _trained(agents: Mapping[str, Any], trained: Sequence[str] | None) -> list[str]:
    names = list(agents) if trained is None else list(trained)
    unknown = [name for name in names if name not in agents]
    if unknown or not names:
        raise ConfigError(
            f"trained={names}: name at least one of the agents {', '.join(agents)}, and no others"
        )
    return names


def _together(losses: Mapping[str, Loss]) -> LossTensor:
    """Sums losses by name, with metrics as `<metric>/<name>`."""
    metrics = {
        f"{metric}/{name}": value
        for name, loss in losses.items()
        for metric, value in loss.metrics.items()
    }
    first, *others = (loss.total for loss in losses.values())
    return LossTensor.of(sum(others, first), metrics)
