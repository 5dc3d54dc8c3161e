"""Names of the zero-shot tasks, by data set. The command line lists them, so this module imports nothing heavy."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from raybio.core.errors import ConfigError


@dataclass(frozen=True)
class DataSet:
    """A data set and what can be asked of it.

    Attributes:
        title: its name in the tables of the paper.
        places: where it lies inside a data folder; the first that is there counts.
        tasks: names of its tasks; the first one stands for it in the report's Table 1.
    """

    title: str
    places: tuple[str, ...]
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


def task_names(asked: Collection[str]) -> list[str]:
    """The tasks that are asked for, each by its own name or its data set's, in the order of ``TASK_NAMES``.

    Raises:
        ConfigError: for a name that is neither, or if nothing is asked for.
    """
    unknown = [name for name in asked if name not in DATA_SETS and name not in TASK_NAMES]
    if unknown or not asked:
        got = f"{unknown[0]!r} is no task" if unknown else "nothing is asked for"
        raise ConfigError(f"--tasks: {got}; want some of {', '.join([*DATA_SETS, *TASK_NAMES])}")
    return [
        name
        for key, one in DATA_SETS.items()
        for name in one.tasks
        if name in asked or key in asked
    ]
