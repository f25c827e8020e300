"""MRLM: multi-agent reinforcement learning of language models.

Names are loaded when they are first used, so that `import mrlm` is quick and needs no torch. Every
algorithm `X` has an `XTrainer` and an `XConfig` beside these (`mrlm.core.faces`); type checkers
read `__init__.pyi`, which `scripts/faces.py` writes.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from mrlm.core.faces import Face, faces, publish
from mrlm.core.lazy import face

__version__ = "0.1.0"

_NAMES = {
    "mrlm.config": "ExperimentConfig TrainingConfig load_config",
    "mrlm.core.chat": "Chat",
    "mrlm.core.environment": "BaseEnvironment Environment SimulatedEnvironment "
    "as_environment check_environment",
    "mrlm.core.episodes": "Episode Group",
    "mrlm.core.errors": "MRLMError",
    "mrlm.core.language_model": "LLMEnvironment",
    "mrlm.core.tiny_model": "default_model",
    "mrlm.core.types": "Completion EnvironmentMode Message MessageRole MessageType Observation "
    "Reward Role Rollout SamplingParams StepResult Task Turn",
    "mrlm.app": "reward",
    "mrlm.doctor.alarm": "Alarm",
    "mrlm.doctor.examination": "examine",
    "mrlm.engines.reward_model": "RewardModel",
    "mrlm.environments.math": "BoxedReward",
    "mrlm.environments.qa": "QASolverEnv",
    "mrlm.environments.reward": "RewardProcessors",
    "mrlm.experiment": "run_experiment",
    "mrlm.generate": "Generator ModelGenerate",
    "mrlm.learn.bases.algorithm": "Algorithm",
    "mrlm.learn.data.batch": "Batch Loss Outputs",
    "mrlm.learn.learner": "Learner",
    "mrlm.learn.loss_tensor": "LossTensor",
    "mrlm.learn.team_learner": "TeamLearner",
    "mrlm.play.workflow": "Workflow WorkflowSpec",
    "mrlm.play.workflow_check": "check_workflow",
    "mrlm.record.reader": "RecordedEpisode RecordedRun RecordedTurn read_run",
    "mrlm.replays.play_from": "play_from",
    "mrlm.replays.replay": "Replay replay",
    "mrlm.replays.session": "Branch ForkSession",
    "mrlm.replays.why": "Why why",
    "mrlm.runs": "EvalResult TrainResult evaluate",
    "mrlm.serving.client.environment": "RemoteEnvironment",
    "mrlm.serving.client.pool": "ServerPool",
    "mrlm.teams.team": "Team",
    "mrlm.trainer": "Trainer",
    "mrlm.training.run": "Callback",
    "mrlm.training.stopping": "EarlyStopping",
}
HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
"""Public name -> the module it is in."""


def _hint(name: str) -> str | None:
    """A hint about the equivalent of another library's trainer."""
    from mrlm.config.other_libraries import refused_classes

    if not name[:1].isupper():
        return None  # a module
    return refused_classes().get(name.removesuffix("Trainer").removesuffix("Config"))


def _made(face: Face) -> Any:
    from mrlm.config.flat_words import config_class
    from mrlm.core import registry

    if face.kind == "algorithm":
        return registry.load("algorithms", face.algorithm)
    if face.kind == "config":
        return config_class(face.name)
    from mrlm.trainer import trainer_class

    return trainer_class(face.name)


def _derived() -> dict[str, Callable[[], Any]]:
    return {name: partial(_made, face) for name, face in faces().items()}


__getattr__: Callable[[str], Any]
__dir__: Callable[[], list[str]]
__getattr__, __dir__ = face(__name__, HOME, _hint, _derived)
publish(lambda name: getattr(sys.modules[__name__], name))  # each is made once
