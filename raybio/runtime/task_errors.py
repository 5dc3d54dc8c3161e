"""Errors of tasks of Ray Data, carried to the driver in the rows that they return.

Ray wraps the errors of a task, so that their type is lost.
"""

from collections.abc import Mapping
from typing import Any

from raybio.core import errors
from raybio.core.errors import DiskError, RaybioError, common_kind
from raybio.core.files import disk_problem

KIND = "error_kind"
MESSAGE = "error_message"

NO_ERROR = {KIND: "", MESSAGE: ""}
"""Columns of a row without an error."""


def error_columns(error: RaybioError | OSError) -> dict[str, str]:
    """Return an error as the columns of a row.

    Raises:
        OSError: if the disk does not explain it.
    """
    if isinstance(error, OSError):
        problem = disk_problem(error)
        if problem is None:
            raise error
        error = DiskError(problem)
    return {KIND: common_kind(error), MESSAGE: str(error)}


def raise_error_of(row: Mapping[str, Any]) -> None:
    """Raise the error that a row carries, if it carries one.

    Raises:
        RaybioError: an error of the type that the task raised.
    """
    if row.get(KIND):
        raise getattr(errors, row[KIND])(row[MESSAGE])
