"""The interface of a benchmark's task: its data, its protocol in words, scores of units, rivals.

A task is a class in one file of ``tasks/``, or in a file of a user. Its fields are the settings
that a suite's YAML gives.

Shape letters: U units (queries, rows, documents, nodes) of intervals and tests, N texts, D width.
"""

import inspect
import math
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raybio.benchmark.task_source import TaskSource
from raybio.core.arrays import Floats
from raybio.core.config import BaseConfig
from raybio.core.digest import digest_of
from raybio.core.errors import ConfigError, DataError
from raybio.core.location import BucketPath
from raybio.core.text import did_you_mean
from raybio.store.manifest import DERIVED, MANIFEST
from raybio.store.sources import describe_files

Reads = Literal["texts", "proteins"]

RANDOM = "random"
"""Name of the rival that embeds every input as a random vector."""

CHANCE = "chance"
"""Name of the row of a random order, where a task has one."""

RIVAL_ROWS = "rivals"
"""Name that stands for all rivals of a task if they are refused."""

NOT_MEASURED = "Not measured."
"""Leakage of tasks whose data states none."""

PROTOCOL = "protocol"
"""Name that stands for protocol and sizes of a task if they are refused."""


class BenchmarkEncoder(Protocol):
    """A model as tasks see it."""

    @property
    def name(self) -> str:
        """Name of its row."""
        ...

    @property
    def folder(self) -> str:
        """Folder of its files; empty if it has none."""
        ...

    def embed(self, inputs: Sequence[str]) -> NDArray[np.float32]:
        """Return the embeddings (N, D) of proteins or texts; each corpus is embedded once."""
        ...

    def truncation_remarks(self, inputs_by_name: Mapping[str, Sequence[str]]) -> list[str]:
        """Return a remark on each kind of inputs, such as "queries", that has some cut."""
        ...


@dataclass(frozen=True, eq=False)
class TaskScores:
    """Scores of a model, or of a rival, on a task.

    The score is ``numerator_U.sum() / denominator_U.sum()``, as in ``raybio.ops.significance``:
    a micro average of counts, or a mean of values if the denominators are 1.

    Attributes:
        unit_ids: ids of the units; scores of two models are compared unit by unit.
        numerator_U: achieved score of each unit.
        denominator_U: achievable score of each unit.
        value: the score of all units if these are a sample; None: the score of these units.
        others: further measures, without intervals.
        remarks: what a reader of the score should know, such as truncated texts.
        processor_seconds: of a task that embeds by itself; saved embeddings have their own costs.
    """

    unit_ids: tuple[str, ...]
    numerator_U: Floats
    denominator_U: Floats
    value: float | None = None
    others: Mapping[str, float] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    processor_seconds: float = 0.0

    @classmethod
    def of_means(
        cls,
        unit_ids: Sequence[Any],
        value_U: Any,
        others: Mapping[str, float] = {},
        *,
        value: float | None = None,
        remarks: Sequence[str] = (),
    ) -> "TaskScores":
        """Return scores whose mean over the units is the score."""
        values = np.asarray(value_U, np.float64)
        return cls(
            tuple(map(str, unit_ids)), values, np.ones(len(values)), value, others, tuple(remarks)
        )

    @property
    def score(self) -> float:
        """The score of all units; NaN where it is undefined."""
        if self.value is not None:
            return self.value
        return float(self.numerator_U.sum() / self.denominator_U.sum())

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; numbers keep all their digits.

        Raises:
            DataError: if a user's own task does not give one number for each unit.
        """
        numerators = np.asarray(self.numerator_U, np.float64)
        denominators = np.asarray(self.denominator_U, np.float64)
        want = (len(self.unit_ids),)
        if numerators.shape != want or denominators.shape != want or (denominators < 0).any():
            raise DataError(
                f"TaskScores of {want[0]} unit_ids: got numerators {numerators.shape} and "
                f"denominators {denominators.shape}, want one of each a unit, denominators >= 0"
            )
        return {
            "units": [str(unit) for unit in self.unit_ids],
            "numerators": numerators.tolist(),
            "denominators": denominators.tolist(),
            "value": None if self.value is None else float(self.value),
            "others": _plain_numbers(self.others),
            "remarks": list(self.remarks),
            "processor_seconds": self.processor_seconds,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TaskScores":
        """Return what ``to_json`` wrote."""
        return cls(
            tuple(content["units"]),
            np.asarray(content["numerators"], np.float64),
            np.asarray(content["denominators"], np.float64),
            content["value"],
            content["others"],
            tuple(content["remarks"]),
            content["processor_seconds"],
        )


@dataclass(frozen=True)
class TaskFacts:
    """What a report says of a task; known once its data has been read.

    Attributes:
        protocol: how the score is computed, in words.
        size: what the data has, such as "10 queries, 1,580 documents".
        leakage: how much of the data may be in a model's training set.
        chance: measure -> exact score without any knowledge; none where it is unknown.
    """

    protocol: str
    size: str
    leakage: str = NOT_MEASURED
    chance: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; chance that is undefined is NaN."""
        return {
            "protocol": self.protocol,
            "size": self.size,
            "leakage": self.leakage,
            "chance": _plain_numbers(self.chance),
        }


class BenchmarkTask(BaseConfig, ABC):
    """A task of a benchmark. Its fields are what a suite's YAML sets; it travels to workers.

    Scores do not depend on fields of type ``Path`` or ``StoreLocation``, but on what these hold.
    """

    family: ClassVar[str] = "Own tasks"
    """Tasks of a family are shown together."""

    source: ClassVar[TaskSource | None] = None
    """The file of a user's own class."""

    rivals_read_the_model: ClassVar[bool] = False
    """Whether rivals need a model, for example its tokens. Then they get the first model that fits,
    or the next one if they fail with it."""

    also_reads: ClassVar[Collection[str]] = ()
    """More kinds of inputs: the task also evaluates encoders that embed parts of these inputs."""

    oracles: ClassVar[Collection[str]] = ()
    """Rivals that read gold answers."""

    name: str = Field(min_length=1, description="name in the report, unique in a suite")

    @property
    def title(self) -> str:
        """Name in words."""
        return self.name

    @property
    def reads(self) -> Reads:
        """Kind of inputs; models of the other kind are skipped."""
        return "texts"

    @property
    @abstractmethod
    def measure(self) -> str:
        """Name of the score; higher is better."""

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest possible score: intervals are cut there.

        Bootstraps of means and ratios over units never leave these limits. Linearized scores,
        scores of a sample of units, and intervals over seeds may.
        """
        return (-math.inf, math.inf)

    @property
    def group(self) -> str:
        """Tasks of one group share texts: one worker evaluates them, one after the other."""
        return f"{self.family} {self.name}"

    @classmethod
    def path_fields(cls) -> dict[str, bool]:
        """Return field -> whether its path may be in a bucket, for the fields that hold paths."""
        types_by_name = {
            name: _types_in(field.annotation) for name, field in cls.model_fields.items()
        }
        return {name: BucketPath in of for name, of in types_by_name.items() if Path in of}

    def check(self) -> str:
        """Return why the task cannot run and what to do; empty if its data is there.

        A task without its data is skipped. Wrong settings stop the command.

        Raises:
            ConfigError: for wrong settings, such as two fields that exclude each other.
        """
        return missing_files(self.files().values(), f"want the data of {self.name}")

    def refuse(self, names: Collection[str], where: str) -> None:
        """Refuse fields that are given although they would be ignored.

        Args:
            names: fields that would be ignored.
            where: the condition that makes them so, such as "with a store".

        Raises:
            ConfigError: if one of them differs from its default.
        """
        fields = type(self).model_fields
        given = [name for name in names if getattr(self, name) != fields[name].default]
        if given:
            verb, what = ("is", "it") if len(given) == 1 else ("are", "them")
            raise ConfigError(
                f"task {self.name}: {' and '.join(given)} {verb} ignored {where}; leave {what} out"
            )

    def files(self) -> Mapping[str, Path]:
        """Return the files that the scores depend on, by what they are to the task.

        Keys are names of fields, or paths below the folder of a field. Hidden files, and what is
        computed from a store and kept in it, are left out.
        """
        files: dict[str, Path] = {}
        for name in self.path_fields():
            path = getattr(self, name)
            if isinstance(path, Path) and path.is_dir():
                below = by_relative_path(path, _data_files(path))
                files |= {f"{name}/{key}": file for key, file in below.items()}
            elif isinstance(path, Path):
                files[name] = path
        return files

    @abstractmethod
    def facts(self) -> TaskFacts:
        """Read the data and return what the report says of it.

        Raises:
            DataError: if the data is damaged.
        """

    @abstractmethod
    def score(self, model: BenchmarkEncoder) -> TaskScores:
        """Score a model.

        Raises:
            ConfigError: if the model does not fit the task.
            DataError: if the data is damaged.
        """

    @abstractmethod
    def rivals(self, model: BenchmarkEncoder | None) -> Mapping[str, TaskScores]:
        """Score models that need no training of an encoder.

        Args:
            model: a model that fits, if ``rivals_read_the_model``; else None.
        """

    def identity(self) -> dict[str, Any]:
        """Return everything that scores depend on besides the model; plain JSON."""
        ignored = set(self.path_fields())
        if self.source is None:
            # A user's own class may read it.
            ignored.add("name")
        settings = {key: part for key, part in self.to_mapping().items() if key not in ignored}
        identity = {
            "task": type(self).__name__,
            "settings": settings,
            "data": files_digest(self.files()),
        }
        return identity if self.source is None else {**identity, "code": self.source.sha256}

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle with the source of a user's own class, which other machines need not have."""
        if self.source is None:
            return super().__reduce_ex__(protocol)
        return _restored, (self.source, self.to_mapping())


def own_task_class(source: TaskSource) -> type[BenchmarkTask]:
    """Return a user's own class of tasks.

    Raises:
        ConfigError: if its file fails, or has no such class of tasks.
    """
    module = source.module()
    found = vars(module).get(source.class_name)
    if found is None:
        has = ", ".join(source.class_names) or "none"
        raise ConfigError(
            f"{source.path}: has no class {source.class_name!r}; its classes: {has}."
            f"{did_you_mean(source.class_name, source.class_names)}"
        )
    # A class that the file imports has its code elsewhere.
    is_task = isinstance(found, type) and issubclass(found, BenchmarkTask)
    if not is_task or found.__module__ != module.__name__:
        raise ConfigError(
            f"{source.path}: {source.class_name} is no subclass of BenchmarkTask that this file "
            "defines"
        )
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise ConfigError(f"{source.path}: {source.class_name} has to define {missing}")
    for name, declared in found.model_fields.items():
        if name not in found.path_fields() and _has_path(declared.annotation):
            raise ConfigError(
                f"{source.path}: {source.class_name}.{name} has several paths; want a field of "
                "type Path for each, or one for their folder"
            )
    found.source = source
    return found


def _types_in(annotation: Any) -> set[Any]:
    """Return an annotation and the members of a union, such as ``Path`` of ``Path | None``."""
    members = {annotation}
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        for part in typing.get_args(annotation):
            if isinstance(part, type) or typing.get_origin(part) is not None:
                members |= _types_in(part)
    return members


def _has_path(annotation: Any) -> bool:
    """Return whether an annotation is ``Path`` or holds it, as ``list[Path]`` does."""
    return annotation is Path or any(map(_has_path, typing.get_args(annotation)))


def _plain_numbers(number_by_name: Mapping[str, float | None]) -> dict[str, float]:
    """Return numbers that JSON can hold; None is NaN."""
    return {
        str(name): math.nan if number is None else float(number)
        for name, number in number_by_name.items()
    }


def _restored(source: TaskSource, settings: dict[str, Any]) -> BenchmarkTask:
    return own_task_class(source).from_mapping(settings)


def files_digest(files: Mapping[str, Path]) -> str:
    """Return the sha256 of files and of what they are to a task, in hex."""
    return digest_of({name: describe_files([path])["sha256"] for name, path in files.items()})


def _data_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder, without hidden ones and the derived files of stores."""
    for path in folder.rglob("*"):
        below = path.relative_to(folder)
        is_hidden = any(part.startswith(".") for part in below.parts)
        is_derived = any(
            parent.name == DERIVED and (folder / parent.parent / MANIFEST).is_file()
            for parent in below.parents
        )
        if path.is_file() and not (is_hidden or is_derived):
            yield path


def by_relative_path(home: Path, paths: Iterable[Path]) -> dict[str, Path]:
    """Return files of a folder by their path below it; of a single file by "."."""
    return {path.relative_to(home).as_posix(): path for path in sorted(paths)}


def missing_files(paths: Iterable[Path], what: str) -> str:
    """Return why a task cannot run, if one of its files is missing; else an empty text.

    Args:
        paths: the files.
        what: what they hold, and where they come from.
    """
    for path in paths:
        if not path.exists():
            return f"{path} does not exist: {what}"
    return ""
