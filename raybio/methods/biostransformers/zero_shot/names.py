"""Names of the zero-shot tasks, by data set.

The command line lists them, so this module imports nothing heavy.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from raybio.core.errors import ConfigError


@dataclass(frozen=True)
class DataSet:
    """A data set and its tasks.

    Attributes:
        title: its name in the paper's tables.
        paths: candidate paths inside a data folder; the first existing one is read.
        tasks: names of its tasks; the first one represents it in the report's Table 1.
    """

    title: str
    paths: tuple[str, ...]
    tasks: tuple[str, ...]


DATA_SETS: Mapping[str, DataSet] = {
    "hoc": DataSet(
        "HoC",
        ("hallmarks_of_cancer/hoc_text_labels.tar.gz", "hoc_text_labels.tar.gz"),
        ("hoc-10", "hoc-10-described", "hoc-37"),
    ),
    "pubmedqa": DataSet(
        "PubMedQA",
        (
            "pubmedqa/ori_pqal.json.gz",
            "pubmedqa/ori_pqal.json",
            "ori_pqal.json.gz",
            "ori_pqal.json",
        ),
        ("pubmedqa-answers", "pubmedqa-contexts", "pubmedqa-yesno-topk"),
    ),
    "bioasq": DataSet(
        "BioASQ",
        ("bioasq_7b", "bioasq"),
        ("bioasq-snippets", "bioasq-ideal-answers", "bioasq-yesno-topk"),
    ),
}

TASK_NAMES = tuple(name for data_set in DATA_SETS.values() for name in data_set.tasks)


def task_names(requested: Collection[str]) -> list[str]:
    """Return the tasks that are requested by name or by data set, in the order of ``TASK_NAMES``.

    Raises:
        ConfigError: for an unknown name, or if nothing is requested.
    """
    unknown = [name for name in requested if name not in DATA_SETS and name not in TASK_NAMES]
    if unknown or not requested:
        got = f"{unknown[0]!r} is no task" if unknown else "got no task"
        raise ConfigError(f"--tasks: {got}; want some of {', '.join([*DATA_SETS, *TASK_NAMES])}")
    names = []
    for key, data_set in DATA_SETS.items():
        names += [name for name in data_set.tasks if name in requested or key in requested]
    return names
