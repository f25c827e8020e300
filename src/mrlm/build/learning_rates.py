"""Warnings of learning rates that are far from the usual ones of what is trained."""

from collections.abc import Sequence

from mrlm.build.in_process import TINY
from mrlm.build.policies import is_adapter
from mrlm.build.run_plan import RunPlan
from mrlm.core.log import log
from mrlm.learn.learner import Learner

USUAL = {True: (1e-4, 5e-4), False: (1e-6, 2e-5)}
"""Whether it is an adapter -> least and largest usual rate, of pretrained models with Adam."""
FAR = 10.0
"""Factor from these that is warned of."""


def check_rates(plan: RunPlan, learners: Sequence[Learner]) -> None:
    """Warns, once, where a small model is trained with a default learning rate, which suits large
    pretrained models; and where that of a pretrained one is ten times above or below the usual.
    Rates of papers and of `sgd` are left alone."""
    training, algorithm = plan.config.training, plan.algorithm
    for learner in learners:
        name, size = learner.policy, learner.weights_of.size
        rate = plan.assignment.policies[name].learning_rate or training.learning_rate
        if size < TINY:
            if rate is None:
                log.warning(
                    "policy %r: learning_rate is not set, and the default of %s, %g, suits large "
                    "pretrained models; a model of %.1f million parameters hardly changes with it; "
                    "set training.learning_rate, to 1e-3 for example",
                    *(name, training.algorithm, algorithm.default_learning_rate, size / 1e6),
                )
                return
            continue
        if training.optimizer == "sgd" or (rate is None and algorithm.preset is not None):
            continue
        adapter = is_adapter(plan, name)
        (low, high), value = USUAL[adapter], rate or algorithm.learning_rate
        if not low / FAR <= value <= high * FAR:
            log.warning(
                "policy %r: a learning rate of %g%s is far %s what trains %s of a pretrained "
                "model, %g to %g: %s; set training.learning_rate",
                *(name, value, "" if rate else f" (the default of {training.algorithm})"),
                "below" if value < low else "above",
                "an adapter" if adapter else "all weights",
                *(low, high),
                "it hardly changes" if value < low else "it may forget its language",
            )
            return
