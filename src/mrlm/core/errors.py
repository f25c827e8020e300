"""The errors of the library. Each names the problem, its location and the fix; `exit_code` is the
exit status of the command line."""

from typing import NoReturn


class MRLMError(Exception):
    """Base of every error this library raises on purpose; a run that ends with one exits 1."""

    exit_code = 1


class ConfigError(MRLMError):
    """Invalid settings: an unknown key, a wrong type, an impossible combination (exit code 2)."""

    exit_code = 2


class PluginError(ConfigError):
    """An unknown algorithm, environment, workflow, engine or tracker (exit code 2)."""


class DataError(ConfigError):
    """A data set cannot be read; the message names file, line and column (exit code 2)."""


class ModelError(ConfigError):
    """A model or tokenizer cannot be loaded or used as requested (exit code 2)."""


class ChatTemplateError(ModelError):
    """A chat template does not identify the assistant's tokens (exit code 2)."""


class RewardError(MRLMError):
    """A reward function or environment returned something that is not a finite number, or not
    the right count of them."""


class EpisodeError(MRLMError):
    """One episode failed. It is recorded with `status="error"`, never with reward 0."""


class PlayerLeft(BaseException):
    """The human player at the terminal quits. Not an `Exception`, so that it ends the run instead
    of failing an episode."""


class HubError(MRLMError):
    """The Hugging Face Hub cannot be reached, or refused a request."""


class EngineError(MRLMError):
    """An engine could not answer."""


class EndpointError(EngineError):
    """A permanent error of a policy's server (a wrong key, an unknown model), which ends the run
    without retries."""


ENDS_RUN: tuple[type[MRLMError], ...] = (ConfigError, EndpointError)
"""Errors that end a run. All others end only the episode in which they occur."""


class WorkerLost(EndpointError):
    """A worker process of the run was lost: the run is rolled back to its last checkpoint, up to
    the allowed number of times."""


class CheckpointError(MRLMError):
    """No valid checkpoint to resume from (exit code 2)."""

    exit_code = 2


class CheckError(MRLMError):
    """A check of the first step found that the run would be silently wrong."""


class TrainingError(MRLMError):
    """Training cannot continue (for example: the run folder cannot be written)."""


class NonFiniteError(TrainingError):
    """Too many steps in a row had a loss or gradient that is not finite."""


class PeerError(TrainingError):
    """Another process of the run was lost or does not respond, so that this one cannot continue."""


def no_constant(word: str) -> NoReturn:
    """The `parse_constant` of strict JSON, which has neither NaN nor infinity."""
    raise ValueError(f"{word} is no JSON number")


def well_formed(text: str, where: str) -> str:
    """A text that has bytes: no half of a surrogate pair, which no tokenizer or file takes.

    Args:
        where: its location, for the error.

    Raises:
        DataError: there is such a half in it.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: half of a surrogate pair (U+{ord(text[error.start]):04X}) at character "
            f"{error.start}, which is no text; replace it, as "
            'text.encode("utf-8", "replace").decode() does'
        ) from None
    return text
