"""The errors a user may meet. Each names the thing, the place and the fix; `exit_code` is what the
command line returns."""

from __future__ import annotations


class MRLMError(Exception):
    """Base of every error this library raises on purpose; a run that ends with one exits 1."""

    exit_code = 1


class ConfigError(MRLMError):
    """What the user wrote cannot be run: an unknown key, a wrong type, an impossible combination
    (exit code 2)."""

    exit_code = 2


class PluginError(ConfigError):
    """No such algorithm, environment, workflow, engine or tracker (exit code 2)."""


class DataError(ConfigError):
    """A data set cannot be read; the message names file, line and column (exit code 2)."""


class ModelError(ConfigError):
    """A model or tokenizer cannot be loaded or used as asked (exit code 2)."""


class ChatTemplateError(ModelError):
    """A chat template cannot say which tokens the assistant wrote (exit code 2)."""


class RewardError(MRLMError):
    """A reward function or environment returned something that is not a finite number, or not
    the right count of them."""


class EpisodeError(MRLMError):
    """One episode failed. It becomes data (`status="error"`), never a zero reward."""


class Left(BaseException):
    """A person at the terminal does not want to go on. No `Exception`, and no failure of an
    episode: it ends whatever plays."""


class EngineError(MRLMError):
    """An engine could not answer."""


class EndpointError(EngineError):
    """A server that speaks for a policy refuses for good (a wrong key, a model it does not have):
    asking again cannot help, so the run ends."""


class WorkerLost(EndpointError):
    """A process that holds a part of the run is gone: the run goes back to its last checkpoint, as
    often as it may."""


class CheckpointError(MRLMError):
    """There is no checkpoint to resume from, or none that is undamaged (exit code 2)."""

    exit_code = 2


class CheckError(MRLMError):
    """A check of the first step found that the run would be silently wrong."""


class TrainingError(MRLMError):
    """Training cannot go on (for example: the run folder cannot be written)."""


class NonFiniteError(TrainingError):
    """Too many steps in a row had a loss or gradient that is not finite."""


class PeerError(TrainingError):
    """Another process of the run is gone or does not answer, so that this one cannot go on."""
