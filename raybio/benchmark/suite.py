"""Suites: the tasks of a benchmark, from a YAML file.

A file has ``title`` and ``tasks``. Each task has ``task``, a kind of ``TASKS`` or a class of a
user's own as ``FILE.py:CLASS``, and the fields of its class. ``{data}`` in a path stands for the
folder of ``--data``; other relative paths are relative to the file. A store may be in a bucket. A
local file may instead exist with ``.gz`` appended.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from raybio.benchmark.task import BenchmarkTask, own_task_class
from raybio.benchmark.task_source import read_task_source
from raybio.core.errors import ConfigError
from raybio.core.fields import SEE_ALL
from raybio.core.location import BucketPath, Location, location
from raybio.core.plain_yaml import parse_yaml
from raybio.core.text import did_you_mean
from raybio.store.sources import plain_or_gzip

TASKS = {
    "zero-shot": "zero_shot.ZeroShotTask",
    "retrieval": "retrieval.BeirRetrievalTask",
    "medlama": "medlama.FactProbeTask",
    "links": "links.LinksTask",
    "labels": "labels.LabelsTask",
    "homophily": "homophily.HomophilyTask",
    "relation-probe": "relation_probe.RelationProbeTask",
    "entities-relations": "entities_relations.EntitiesRelationsTask",
    "mteb": "mteb.MtebTask",
}
"""Kind of a task in a suite's YAML -> its class in ``tasks``, which is imported when it is used:
most import torch."""

_DATA = "{data}"


@dataclass(frozen=True)
class Suite:
    """The tasks of a benchmark.

    Attributes:
        name: name of a shipped suite, or path of the file.
        title: in words.
        tasks: in the order of the report.
    """

    name: str
    title: str
    tasks: tuple[BenchmarkTask, ...]


def read_suite(name: str, data: Path | None) -> Suite:
    """Read a suite.

    Args:
        name: name of a shipped suite, or path of a YAML file.
        data: folder that ``{data}`` stands for.

    Raises:
        ConfigError: if there is no such suite, its YAML is wrong, or it wants ``--data``.
    """
    shipped = files(__package__) / "suites" / f"{name}.yaml"
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ConfigError(f"--suite {name}: no such file")
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--suite {name}: cannot be read ({error.strerror})") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"--suite {name}: is no UTF-8 ({error})") from None
        home = path.absolute().parent
    elif shipped.is_file():
        text = shipped.read_text(encoding="utf-8")
        home = Path.cwd()
    else:
        names = sorted(
            each.name.removesuffix(".yaml")
            for each in (files(__package__) / "suites").iterdir()
            if each.name.endswith(".yaml")
        )
        raise ConfigError(
            f"--suite {name}: want {', '.join(names)}, or a file that ends in .yaml."
            f"{did_you_mean(name, names)}"
        )
    try:
        content = parse_yaml(text)
    except ConfigError as error:
        raise ConfigError(f"--suite {name}: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("tasks"), list):
        raise ConfigError(f"--suite {name}: want a mapping with title and a list of tasks")
    unknown = set(content) - {"title", "tasks"}
    if unknown:
        raise ConfigError(
            f"--suite {name}: unknown key {min(map(str, unknown)):.60}; want title and tasks"
        )
    for entry in content["tasks"]:
        _check_kind(name, entry)
    tasks = tuple(_task(name, entry, home, data) for entry in content["tasks"])
    names_of_tasks = [task.name for task in tasks]
    for each in names_of_tasks:
        if names_of_tasks.count(each) > 1:
            raise ConfigError(f"--suite {name}: two tasks are called {each:.60}; want one a name")
    if not tasks:
        raise ConfigError(f"--suite {name}: has no task, want one at least")
    return Suite(name, str(content.get("title", name)), tasks)


def task_class(kind: str) -> type[BenchmarkTask]:
    """Return the class of a kind of ``TASKS``."""
    module, name = TASKS[kind].split(".")
    found: type[BenchmarkTask] = getattr(
        importlib.import_module(f"raybio.benchmark.tasks.{module}"), name
    )
    return found


def _check_kind(suite: str, entry: Any) -> None:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"--suite {suite}: got the task {entry!r:.60}, want a mapping with task")
    given = entry.get("task")
    name = str(given)
    if name not in TASKS and not name.rpartition(":")[0].endswith(".py"):
        raise ConfigError(
            f"--suite {suite}: a task of kind {given!r:.60}, want task: one of {', '.join(TASKS)}, "
            f"or a class of your own as PYTHON_FILE:CLASS.{did_you_mean(name, TASKS)}"
        )


def _task(suite: str, entry: Mapping[str, Any], home: Path, data: Path | None) -> BenchmarkTask:
    settings = dict(entry)
    kind = _task_class(suite, str(settings.pop("task")), home)
    for name, may_be_bucket in kind.path_fields().items():
        if settings.get(name) is not None:
            option = f"--suite {suite}, task {settings.get('name')!s:.60}: {name}"
            path = _path(option, str(settings[name]), home, data)
            if isinstance(path, BucketPath) and not may_be_bucket:
                raise ConfigError(f"{option}: got {path}, want a local path")
            settings[name] = str(path)
    try:
        return kind.from_mapping(settings)
    except ConfigError as error:
        wanted = f" Want some of {', '.join(kind.model_fields)}."
        message = str(error).replace(SEE_ALL, wanted)
        where = f"--suite {suite}, task {settings.get('name')!s:.60}"
        raise ConfigError(f"{where}: {message}") from None


def _path(option: str, text: str, home: Path, data: Path | None) -> Location:
    """Return a path of a suite as an absolute one, or that of a bucket."""
    if _DATA in text:
        if data is None:
            raise ConfigError(
                f"{option}: reads public data from a folder; give it with --data. "
                "`raybio prepare download benchmark-data --out FOLDER` fetches it"
            )
        text = text.replace(_DATA, str(data.absolute()))
    path = location(text, option)
    return path if isinstance(path, BucketPath) else plain_or_gzip(home / path)


def _task_class(suite: str, name: str, home: Path) -> type[BenchmarkTask]:
    """Return the class that ``task`` names."""
    if name in TASKS:
        return task_class(name)
    file, _, class_name = name.rpartition(":")
    try:
        return own_task_class(read_task_source(home / Path(file).expanduser(), class_name))
    except ConfigError as error:
        raise ConfigError(f"--suite {suite}, task: {error}") from error
