"""Errors, named by who can act on them.

Every message says what happened, what was found, what was wanted and what to do.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class RaybioError(Exception):
    """Base class of every error that raybio raises on purpose.

    Attributes:
        exit_code: exit code of a command that ends with the error.
    """

    exit_code = 2


class ConfigError(RaybioError):
    """The user's settings are wrong: an unknown field, a bad type, a value out of range."""


class NoHeadError(ConfigError):
    """A model has no head that predicts, since it was trained for something else."""


class MetricError(ConfigError):
    """The method does not evaluate the sweep's metric, so every trial will fail."""


class LongRunError(ConfigError):
    """The run would take longer than the user has accepted."""


class DataError(RaybioError):
    """The user's input is wrong: the message names the file and the record."""


class StoreError(RaybioError):
    """A prepared store on disk is missing, damaged or not the expected one."""


class DamagedStoreError(StoreError):
    """Files of a store are truncated, damaged or changed."""


class CheckpointError(RaybioError):
    """A run's checkpoints are damaged, missing or belong to another configuration."""


class OtherVersionsError(CheckpointError):
    """A strict run would be resumed by other versions, or on other hardware."""


class EvaluationStoppedError(RaybioError):
    """The final evaluation was asked to stop; every worker raises it, between two models."""


class RecordError(RaybioError):
    """A record of a run or a sweep, a JSON file in its folder, is damaged or missing."""


class RecordFormatError(RecordError):
    """A record is of another kind or format version than this version of raybio reads."""


class ClusterError(RaybioError):
    """The cluster cannot carry out the request: resources, storage or a lost worker.

    The cause may be temporary: workers and trials that end with this error are restarted.
    """


class HeldError(ClusterError):
    """Another process is at work on a run."""


class InterruptedRunError(RaybioError):
    """A signal ended the run after a checkpoint; the same command resumes it."""

    def __init__(self, signal_number: int, message: str) -> None:
        """Set the exit code of the process to 128 plus the number of the signal."""
        super().__init__(message)
        self.exit_code = 128 + signal_number


class StopFileError(InterruptedRunError):
    """A stop file that the user made ended one run after a checkpoint."""

    def __init__(self, message: str) -> None:
        """Use the exit code of SIGINT."""
        super().__init__(signal.SIGINT, message)


class StorageError(ClusterError):
    """A bucket cannot be reached, does not exist, or refuses the request."""


class DiskError(RaybioError):
    """A disk is full or read-only; the same command resumes once that is fixed."""


class MissingObjectError(StorageError):
    """A bucket holds no object of this name."""


def common_kind(error: BaseException) -> str:
    """Return the name of the error's nearest class in this module, from which it can be rebuilt.

    Any other error gets the name of its own type.
    """
    classes = type(error).__mro__
    return next((each for each in classes if each.__module__ == __name__), classes[0]).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text; the name of its type if it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def last_line(error: BaseException) -> str:
    """Return the last line of an error's text; the name of its type if it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


def one_line(error: BaseException) -> str:
    """Return the first 300 characters of an error's text, without line breaks.

    If it has no text, return the name of its type.
    """
    return " ".join(str(error).split())[:300] or type(error).__name__


@contextmanager
def named_by(option: str) -> Iterator[None]:
    """Prefix storage errors of the block with the option that named the bucket.

    Raises:
        StorageError: the error of the block.
    """
    try:
        yield
    except StorageError as error:
        raise type(error)(f"{option} {error}".strip()) from None


class DamagedObjectError(RaybioError):
    """An object of a bucket differs from what was uploaded, also when it is downloaded again."""


class DivergedError(RaybioError):
    """The loss or its gradient is no longer finite."""
