"""Options of all trainings, and parsers of numbers for options of all commands."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raybio.core.errors import RaybioError
from raybio.core.files import check_writable_file
from raybio.core.location import Location, is_uri, location
from raybio.core.search_space import quoted
from raybio.encoders.config import Pooling
from raybio.runtime.model_paths import model_address
from raybio.training.settings import Device, EmbeddingPrecision

if TYPE_CHECKING:
    LocationType = Location
else:
    # Typer does not support unions; ``path_or_uri`` returns either type.
    LocationType = Path


MODEL = "MODEL|URI"
"""Metavar in ``--help`` of options that take a model."""

FREE_TEXT = object()
"""Annotation of parameters whose texts may contain any link."""


def positive(text: str) -> float:
    """Return the number above 0 in ``text``.

    It is a typer ``parser``, since a range of typer's own accepts NaN.

    Raises:
        typer.BadParameter: for anything else, including NaN and infinity.
    """
    return _number(text, "a number above 0", lambda value: value > 0)


def non_negative(text: str) -> float:
    """Return the number of 0 or more in ``text``; otherwise as ``positive``."""
    return _number(text, "a number of 0 or more", lambda value: value >= 0)


def fraction(text: str) -> float:
    """Return the number from 0 to 1 in ``text``; otherwise as ``positive``."""
    return _number(text, "a number from 0 to 1", lambda value: 0 <= value <= 1)


def _number(text: str, wanted: str, is_wanted: Callable[[float], bool]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and is_wanted(value)):
        raise typer.BadParameter(f"got {text}, want {wanted}")
    return value


PoolingOption = Annotated[
    Pooling | None, typer.Option(help="pooling of models whose folder does not state it")
]


PRECISION = "of the encoders: fp32; bf16, or tf32 on GPUs, where the machine has it"


PrecisionOption = Annotated[EmbeddingPrecision, typer.Option(help=PRECISION)]


def encoders_in(precision: EmbeddingPrecision) -> AbstractContextManager[None]:
    """Return a context in which this process embeds with the precision of ``--precision``.

    Raises:
        ConfigError: for a precision that this machine lacks.
    """
    # Imported here: torch takes seconds to import.
    from raybio.training.precision import (
        default_device,
        embedding_precision,
        resolve_precision,
    )

    return embedding_precision(resolve_precision(precision, default_device()))


def writable_file(path: Path | None) -> Path | None:
    """Return a path at which a file can be written, or None; the typer ``callback`` of ``--out``.

    Raises:
        ConfigError: if no file can be written there.
    """
    if path is not None:
        check_writable_file(path)
    return path


StripStop = Annotated[
    bool, typer.Option("--strip-stop", help="remove a stop symbol at a protein's end")
]
MaxBadShare = Annotated[
    float,
    typer.Option(parser=fraction, metavar="FLOAT", help="maximum fraction of invalid records"),
]


def path_or_uri(text: str) -> Location:
    """Return a local path or a path in a bucket.

    It is the typer ``parser`` of every option that takes both: ``run_app`` refuses URIs in options
    whose parser is not in ``URI_PARSERS``.

    Raises:
        ConfigError: for a URI that is not supported.
    """
    return location(text, "path or URI")


def pattern_or_uri(text: str) -> str:
    """Return a pattern of files, which may be a URI; otherwise as ``path_or_uri``."""
    location(text, "pattern or URI")
    return text


def model_or_uri(text: str) -> str:
    """Return a model: a folder, a hub id or a URI; otherwise as ``path_or_uri``."""
    return str(location(text, "model")) if is_uri(text) else text


URI_PARSERS = (path_or_uri, pattern_or_uri, model_or_uri)
"""Parsers of options and arguments that take URIs."""


def location_option(meaning: str, *names: str) -> Any:
    """Return the declaration of an option that takes a local path or a URI."""
    return typer.Option(*names, parser=path_or_uri, metavar="PATH|URI", help=meaning)


def sources_option(meaning: str, *names: str) -> Any:
    """Return the declaration of an option that takes patterns of local files or of objects."""
    return typer.Option(*names, parser=pattern_or_uri, metavar="PATH|URI", help=meaning)


def model_option(meaning: str, *names: str) -> Any:
    """Return the declaration of an option that takes a model: a folder, a URI or a hub id."""
    return typer.Option(*names, parser=model_or_uri, metavar=MODEL, help=meaning)


def model_argument(meaning: str) -> Any:
    """Return the declaration of an argument that takes a model, as ``model_option``."""
    return typer.Argument(parser=model_or_uri, metavar=MODEL, help=meaning)


Store = Annotated[
    LocationType | None, location_option("prepared store; default: the built-in corpus")
]


ConfigFile = Annotated[Path | None, typer.Option(help="YAML file of settings")]


RecipeName = Annotated[
    str | None,
    typer.Option("--recipe", help="settings that come with the method, listed below; or demo"),
]


Settings = Annotated[
    list[str] | None, typer.Option("--set", help="one setting: a.b=value; repeatable")
]


Init = Annotated[
    str | None,
    model_option("initial encoder: folder of a finished run, model folder or hub id"),
]


def init_source(init: str | None) -> str | None:
    """Return the value of ``encoder.source`` for ``--init``.

    Raises:
        ConfigError: if there is no such model, or its folder has no weights.
    """
    if init is None:
        return None
    source = model_address(init, "--init")
    if Path(source).expanduser().is_dir():
        from raybio.encoders.sources import find_weights  # the hub's client takes a second

        with errors_name_init(init, source):
            find_weights(source, "main")
    return source


def init_settings(source: str | None) -> list[str]:
    """Return the value of ``init_source`` as a setting; [] for None."""
    return [] if source is None else [f"encoder.source={quoted(source)}"]


@contextmanager
def errors_name_init(init: str | None, source: str | None) -> Iterator[None]:
    """Context in which errors about the model of ``--init`` name this option, not the setting.

    Args:
        init: value of the option.
        source: what ``init_source`` returned for it.
    """
    try:
        yield
    except RaybioError as error:
        setting = f"encoder.source {source!r}"
        message = str(error)
        if init is not None and setting in message:
            message = message.replace(setting, f"--init {init}")
            error.args = (message.replace("set encoder.source=FOLDER", "give --init FOLDER"),)
        raise


Workers = Annotated[
    int | None,
    typer.Option(min=1, help="number of training workers; default: 1, or as the run began"),
]


CpusPerWorker = Annotated[
    float | None,
    typer.Option(
        parser=positive,
        metavar="FLOAT",
        help="logical CPUs of each worker; default: all but the share of Ray Data",
    ),
]


GpusPerWorker = Annotated[
    float | None,
    typer.Option(
        parser=non_negative,
        metavar="FLOAT",
        help="GPUs of each worker of a trial; a fraction lets trials share one; default: 1 if "
        "there are any",
    ),
]


Budget = Annotated[
    list[str] | None,
    typer.Option("--budget", help="override the space's budget: num_trials=6; repeatable"),
]


DeviceOption = Annotated[
    Device,
    typer.Option(help="where workers train; auto: on GPUs if there is one for each worker"),
]


Name = Annotated[str | None, typer.Option(help="name of the run; the same name resumes that run")]


Runs = Annotated[
    LocationType | None, location_option("folder of runs; default: RAYBIO_RUNS or runs/")
]


Sweeps = Annotated[
    LocationType | None, location_option("folder of sweeps; default: RAYBIO_SWEEPS or sweeps/")
]


TrackingUri = Annotated[
    str | None,
    typer.Option(help="MLflow tracking URI; default: sqlite, mlflow.db next to the runs"),
]


Register = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="register the finished model in MLflow under this name; a run is registered once",
    ),
]


Alias = Annotated[
    str | None,
    typer.Option(help="alias that --register points to the version, such as champion"),
]


Seeds = Annotated[
    int,
    typer.Option(min=1, help="number of seeds, for mean ± standard deviation in the table"),
]


NoBaseline = Annotated[bool, typer.Option("--no-baseline", help="train only this run")]


DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="print the runs, with their time if a similar one has finished; train none",
    ),
]


Yes = Annotated[bool, typer.Option("--yes", help="accept a run of more than a day on CPUs")]


Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="refuse to resume runs that other versions, threads or hardware have trained, even "
        "in part; else warn",
    ),
]


Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        help="show Ray's own logs and progress bars, and the traceback of an error with its causes",
    ),
]
