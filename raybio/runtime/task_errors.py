"""Errors of tasks of Ray Data, carried to the driver in the rows that they return.

Ray wraps what a task raises, and the error's type is lost on the way.
"""

from collections.abc import Mapping
from typing import Any

from raybio.core import errors
from raybio.core.errors import DiskError, RaybioError
from raybio.core.files import disk_problem

KIND = "error_kind"
MESSAGE = "error_message"

NO_ERROR = {KIND: "", MESSAGE: ""}
"""Columns of a row without an error."""


def error_columns(error: RaybioError | OSError) -> dict[str, str]:
    """Return an error as the columns of a row.

    Raises:
        OSError: if it is one that no disk explains.
    """
    if isinstance(error, OSError):
        problem = disk_problem(error)
        if problem is None:
            raise error
        error = DiskError(problem)
    # Of a subclass that a package keeps for itself, the nearest class of the common errors.
    kind = next(each for each in type(error).__mro__ if each.__module__ == errors.__name__)
    return {KIND: kind.__name__, MESSAGE: str(error)}


def raise_error_of(row: Mapping[str, Any]) -> None:
    """Raise the error that a row carries, if it carries one.

    Raises:
        RaybioError: of the task's type.
    """
    if row.get(KIND):
        raise getattr(errors, row[KIND])(row[MESSAGE])
