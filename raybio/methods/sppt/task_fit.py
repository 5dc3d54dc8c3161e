"""Does a task fit a graph? What neighbours tell of the task's labels, beside what they would tell of shuffled ones.

Where neighbours tell a label better than by chance, an encoder that was pre-trained on the graph
has it near by (``raybio.methods.sppt.graph.homophily``, and the paper's Table 1). Where they tell
it no better, as of roles in the graph, no gain is to be expected; only labels of which linked nodes
differ are told less than by chance.

Shuffled are the labels within each group of nodes, so that what the group alone says (a species,
say) is no merit of the graph.

A table of labels: an id and a class or number a line, tab-separated, with a header, ``.gz`` too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.stats import spearmanr

from raybio.core.errors import DataError
from raybio.core.markdown import markdown_table
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.graph.homophily import (
    edge_homophily,
    homophily,
    neighbor_mean,
    neighbor_vote,
)
from raybio.methods.sppt.graph_store import find
from raybio.store.sources import bounded_lines, open_source

NUM_SHUFFLES = 199
"""Of labels that neighbours know nothing of, one in twenty lies outside what 95 % of them come to."""


FEW = 100
"""Nodes that are asked below which nothing is foretold."""


class BesideChance(NamedTuple):
    """A measure, and the same of shuffled labels.

    Attributes:
        value: of the labels as they are.
        chance: mean over shuffles.
        low: of the interval that holds 95 % of the shuffles.
        high: of it.
    """

    value: float
    chance: float
    low: float
    high: float


def fit_of_classes(
    graph: Graph, label_N: NDArray[np.int64], *, num_shuffles: int = NUM_SHUFFLES, seed: int = 0
) -> dict[str, Any]:
    """What neighbours tell of classes.

    Args:
        graph: N nodes; only nodes of one group are linked.
        label_N: classes from 0, -1 for nodes without.
        num_shuffles: of the labels within groups.
        seed: of the shuffles.

    Returns:
        ``nodes``, ``labelled``, ``asked`` (labelled nodes with a labelled neighbour), ``classes``,
        ``largest_class`` (its share of those with a label), ``foretold`` ("help", "nothing",
        "harm", or "too few") and, as ``BesideChance``, ``homophily`` and ``edge_homophily``.

    Raises:
        ValueError: if labels do not fit the graph.
    """
    asked = int((~np.isnan(neighbor_vote(graph, label_N))).sum())
    shuffled = [
        _shuffled(graph.group_N, label_N, label_N >= 0, rng)
        for rng in _generators(seed, num_shuffles)
    ]
    found = {
        name: _beside(measure(graph, label_N), [measure(graph, other) for other in shuffled])
        for name, measure in (("homophily", homophily), ("edge_homophily", edge_homophily))
    }
    num_of_class = np.bincount(label_N[label_N >= 0], minlength=1)
    return {
        "nodes": graph.num_nodes,
        "labelled": int((label_N >= 0).sum()),
        "asked": asked,
        "classes": int((num_of_class > 0).sum()),
        "largest_class": float(num_of_class.max() / max(num_of_class.sum(), 1)),
        **found,
        "foretold": _foretold(found["homophily"], asked),
    }


def fit_of_numbers(
    graph: Graph, value_N: NDArray[np.float64], *, num_shuffles: int = NUM_SHUFFLES, seed: int = 0
) -> dict[str, Any]:
    """What neighbours tell of numbers: Spearman's correlation of a node's with the mean of its neighbours'.

    Args:
        graph: as for ``fit_of_classes``.
        value_N: NaN for nodes without.
        num_shuffles: of the numbers within groups.
        seed: of the shuffles.

    Returns:
        ``nodes``, ``labelled``, ``asked``, ``foretold`` and, as ``BesideChance``, ``correlation``.

    Raises:
        ValueError: if values do not fit the graph.
    """
    has_N = ~np.isnan(value_N)
    asked = int((has_N & ~np.isnan(neighbor_mean(graph, value_N))).sum())
    shuffled = [
        _shuffled(graph.group_N, value_N, has_N, rng) for rng in _generators(seed, num_shuffles)
    ]
    correlation = _beside(
        _correlation(graph, value_N), [_correlation(graph, other) for other in shuffled]
    )
    return {
        "nodes": graph.num_nodes,
        "labelled": int(has_N.sum()),
        "asked": asked,
        "correlation": correlation,
        "foretold": _foretold(correlation, asked),
    }


def fit_markdown(data: Mapping[str, Any], title: str) -> str:
    """A report of ``fit_of_classes`` or ``fit_of_numbers``."""
    told = f"{data['labelled']:,} of {data['nodes']:,} nodes have a label, {data['asked']:,} of them beside another."
    if "classes" in data:
        told += (
            f" {data['classes']:,} classes, the largest with {100 * data['largest_class']:.1f} %."
        )
    names = {
        "homophily": "homophily: the commonest label among a node's neighbours is its own",
        "edge_homophily": "linked nodes have equal labels",
        "correlation": "rank correlation of a node with the mean of its neighbours",
    }
    rows = [
        [names[name], *(f"{number:.3f}" for number in one)]
        for name, one in data.items()
        if isinstance(one, BesideChance)
    ]
    table = markdown_table(["", "labels", "shuffled: mean", "2.5 %", "97.5 %"], rows)
    return "\n".join([f"# {title}", "", told, "", table, "", _WORDS[data["foretold"]]])


_WORDS = {
    "help": "Neighbours tell more than chance: pre-training on this graph can help this task, the more the farther the "
    "measure lies from chance.",
    "nothing": "Neighbours tell no more than chance: pre-training on this graph is not expected to help this task.",
    "harm": "Neighbours tell less than chance: linked nodes differ, and pre-training on this graph, which draws them "
    "together, is expected to harm this task.",
    "too few": f"Fewer than {FEW} nodes could be asked: too few to foretell anything.",
}


def _foretold(found: BesideChance, asked: int) -> str:
    if asked < FEW:
        return "too few"
    return "help" if found.value > found.high else "harm" if found.value < found.low else "nothing"


def _beside(value: float, shuffled: list[float]) -> BesideChance:
    low, high = np.percentile(shuffled, [2.5, 97.5])
    return BesideChance(value, float(np.mean(shuffled)), float(low), float(high))


def _correlation(graph: Graph, value_N: NDArray[np.float64]) -> float:
    mean_N = neighbor_mean(graph, value_N)
    both_N = ~np.isnan(value_N) & ~np.isnan(mean_N)
    own, others = value_N[both_N], mean_N[both_N]
    if len(own) < 2 or np.ptp(own) == 0 or np.ptp(others) == 0:
        return 0.0  # of constants nothing varies with anything
    return float(spearmanr(own, others).statistic)


def _generators(seed: int, num: int) -> list[np.random.Generator]:
    return [np.random.default_rng(each) for each in np.random.SeedSequence(seed).spawn(num)]


def _shuffled(
    group_N: NDArray[np.integer[Any]],
    label_N: NDArray[Any],
    has_N: NDArray[np.bool_],
    rng: np.random.Generator,
) -> NDArray[Any]:
    """The labels that there are, in another order within each group."""
    node_L = np.flatnonzero(has_N)
    group_L = np.asarray(group_N)[node_L]
    shuffled_N = label_N.copy()
    shuffled_N[node_L[np.argsort(group_L, kind="stable")]] = label_N[
        node_L[np.lexsort((rng.random(len(node_L)), group_L))]
    ]
    return shuffled_N


WANTED = "a table with a header and two tab-separated columns: id and label"


class NodeLabels(NamedTuple):
    """Labels of a store's rows.

    Attributes:
        text_N: as the table writes them; "" for rows without.
        unknown: ids of the table that the store does not have.
    """

    text_N: NDArray[np.object_]
    unknown: list[str]

    def classes(self) -> tuple[NDArray[np.int64], list[str]]:
        """Number of each row's class (N,), -1 for none, and the classes by the alphabet."""
        names = sorted({text for text in self.text_N if text})
        number = {name: place for place, name in enumerate(names)} | {"": -1}
        return np.array([number[text] for text in self.text_N], dtype=np.int64), names

    def numbers(self) -> NDArray[np.float64]:
        """Each row's number (N,), NaN for none.

        Raises:
            DataError: for a label that is no finite number.
        """
        try:
            value_N = np.array([float(text) if text else np.nan for text in self.text_N])
        except ValueError as error:
            raise DataError(
                f"labels are not all numbers ({error}); leave --numbers out for classes"
            ) from None
        if np.isinf(value_N).any():
            raise DataError("a label is infinite, want finite numbers")
        return value_N


def read_node_labels(path: Path, keys: pa.Array) -> NodeLabels:
    """Read labels of the rows with these ids.

    Raises:
        DataError: for a line that has not two columns, an id without a label, or one that comes
            twice, naming the line; if the header is missing, or no id of the table is in the store.
    """
    ids: list[str] = []
    labels: list[str] = []
    line_by_id: dict[str, int] = {}
    with open_source(path, WANTED) as file:
        for number, line in enumerate(bounded_lines(file, path), start=1):
            try:
                parts = line.decode("utf-8").rstrip("\r\n").split("\t")
            except UnicodeDecodeError:
                raise DataError(f"{path}, line {number}: is not UTF-8, want {WANTED}") from None
            if len(parts) != 2 or not all(part.strip() for part in parts):
                raise DataError(
                    f"{path}, line {number}: got {len(parts)} columns {parts!r:.80}, want {WANTED}"
                )
            name, label = (part.strip() for part in parts)
            if number == 1:
                if find(pa.array([name], pa.string()), keys)[0] >= 0:
                    raise DataError(
                        f"{path}, line 1: {name} is an id of the store, and the first line a "
                        "header; add one"
                    )
                continue
            if (first := line_by_id.setdefault(name, number)) != number:
                raise DataError(
                    f"{path}, line {number}: {name} had its label in line {first}; want one line "
                    "an id"
                )
            ids.append(name)
            labels.append(label)
    place_L = find(pa.array(ids, pa.string()), keys)
    if not (place_L >= 0).any():
        got, wanted = (found[0] if len(found) else "none" for found in (ids, keys))
        raise DataError(
            f"{path}: none of its {len(ids):,} ids ({got}, ...) is in the store; want such as "
            f"{wanted}"
        )
    text_N = np.full(len(keys), "", dtype=object)
    text_N[place_L[place_L >= 0]] = np.array(labels, dtype=object)[place_L >= 0]
    return NodeLabels(text_N, [name for name, place in zip(ids, place_L, strict=True) if place < 0])
