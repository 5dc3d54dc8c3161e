"""Tables of a probe's report: the paper's tables, then the tables of each query set.

Accuracies are in percent; "ours" and "published" mark the rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raybio.methods.contrastive_probe.accuracy import CUTOFFS
from raybio.methods.contrastive_probe.label_free_selection import (
    Table,
    relation_table,
    select_candidates,
    selection_table,
)
from raybio.methods.contrastive_probe.published import (
    BIOLAMA_SOURCES,
    is_medlama,
    table_3,
    table_7,
    table_10,
)
from raybio.ops.significance import Interval

MEANS = ("micro", "macro")

TABLE_10_COLUMNS = (("full", "macro"), ("full", "micro"), ("hard", "macro"), ("hard", "micro"))
"""(query set, mean) of each column."""

PUBLISHED = " (published)"
"""End of the first cell of a row with figures of the paper."""


def report_tables(data: Mapping[str, Any]) -> dict[str, Table]:
    """Return heading -> table.

    The tables of the paper come first. Then, for each set: scores, relations, lengths, layers and
    agreement.

    Args:
        data: of ``report.report_data``.
    """
    set_by_name = {query_set["name"]: query_set for query_set in data["sets"]}
    # Another benchmark in MedLAMA's layout has no published figures.
    medlama = {
        name: query_set
        for name, query_set in set_by_name.items()
        if name in ("full", "hard") and is_medlama(query_set["results"][0]["by_relation"]["1"])
    }
    tables = {}
    if "full" in medlama:
        tables["Table 3: approaches, full set"] = _table_3(medlama["full"])
    if medlama:
        tables["Tables 4 and 10: acc@1 / acc@10"] = _table_10(medlama)
    if set(BIOLAMA_SOURCES) & set_by_name.keys():
        tables["Table 7: BioLAMA, acc@1 / acc@5"] = _table_7(set_by_name)
    for name, query_set in set_by_name.items():
        results = query_set["results"]
        everything = [*query_set["rivals"], *results]
        tables[f"Scores, {name} set"] = _score_table(query_set)
        for k in (1, 10):
            by_relation = [result["by_relation"][str(k)] for result in everything]
            tables[f"By relation, {name} set, acc@{k}"] = _by_relation(everything, by_relation)
            tables[f"By length of the answers, {name} set, acc@{k}"] = length_table(
                {result["label"]: result["by_length"][str(k)] for result in everything}
            )
        if len({result["layer"] for result in results}) > 1:
            tables[f"By layer, {name} set: acc@1 / acc@10, micro"] = _by_layer(results)
        if all(result["agreement"] for result in results):
            agreement = [result["agreement"] for result in results]
            heading = f"Agreement of two wordings above chance, {name} set"
            tables[heading] = _by_relation(results, agreement)
            tables |= _layer_selection(query_set)
    return tables


def length_table(bins_by_label: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """Return accuracies by length of the answers: a row per bin, a column per result.

    Args:
        bins_by_label: bins of results over the same queries (``report.length_data``).
    """
    rows = [["characters", "queries", *bins_by_label]]
    for bins in zip(*bins_by_label.values(), strict=True):
        first = bins[0]["first"]
        end = bins[0]["end"]
        span = f"{first} and more" if end is None else f"{first} to {end - 1}"
        accuracies = [_percent(length_bin["accuracy"]) for length_bin in bins]
        rows.append([span, f"{bins[0]['num_queries']:,}", *accuracies])
    return rows


def _table_3(full: Mapping[str, Any]) -> Table:
    def cells(scores: Mapping[str, Any]) -> list[str]:
        return [_percent(scores[k]["value"]) for k in ("1", "10")]

    rows = [
        ["approach", "model", "acc@1", "acc@10"],
        ["chance", "", *cells(full["chance"]["micro"])],
    ]
    rows += [[rival["label"], "", *cells(rival["micro"])] for rival in full["rivals"]]
    rows += [["ours", result["label"], *cells(result["micro"])] for result in full["results"]]
    for row in table_3():
        acc_at_10 = "-" if row.acc_at_10 is None else f"{row.acc_at_10:.2f}"
        rows.append([f"{row.approach}{PUBLISHED}", row.model, f"{row.acc_at_1:.2f}", acc_at_10])
    return rows


def _table_10(set_by_name: Mapping[str, Any]) -> Table:
    columns = [(name, mean) for name, mean in TABLE_10_COLUMNS if name in set_by_name]
    rows = [["model", *(f"{name}, {mean}" for name, mean in columns)]]
    for _, label, cells in _rows_of_sets(set_by_name, columns, 10):
        rows.append([label, *cells])
    for model, pair_by_column in table_10().items():
        cells = [_published_pair(pair_by_column[column]) for column in columns]
        rows.append([f"{model}{PUBLISHED}", *cells])
    return rows


def _table_7(set_by_name: Mapping[str, Any]) -> Table:
    sources = [source for source in BIOLAMA_SOURCES if source in set_by_name]
    rows = [["approach", "model", *sources]]
    columns = [(source, "micro") for source in sources]
    for kind, label, cells in _rows_of_sets(set_by_name, columns, 5):
        named = ["ours", label] if kind == "results" else [label, ""]
        rows.append([*named, *cells])
    for row in table_7():
        cells = [_published_pair(row.pair_by_source[source]) for source in sources]
        rows.append([f"{row.approach}{PUBLISHED}", row.model, *cells])
    return rows


def _rows_of_sets(
    set_by_name: Mapping[str, Any], columns: Sequence[tuple[str, str]], k: int
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield kind ("chance", "rivals", "results"), label and cells of each row that we computed.

    Args:
        set_by_name: query sets with the same rivals and results.
        columns: query set and mean of each cell.
        k: cells hold acc@1 and acc@k.
    """
    yield "chance", "chance", [_two(set_by_name[name]["chance"][mean], k) for name, mean in columns]
    first_set = set_by_name[columns[0][0]]
    for kind in ("rivals", "results"):
        for index, result in enumerate(first_set[kind]):
            cells = [_two(set_by_name[name][kind][index][mean], k) for name, mean in columns]
            yield kind, result["label"], cells


def _score_table(query_set: Mapping[str, Any]) -> Table:
    columns = [(mean, str(k)) for mean in MEANS for k in CUTOFFS]
    chance = [_percent(query_set["chance"][mean][k]["value"]) for mean, k in columns]
    rows = [
        ["model", *(f"acc@{k}, {mean}" for mean, k in columns), "p"],
        ["chance", *chance, ""],
    ]
    for result in [*query_set["rivals"], *query_set["results"]]:
        cells = [_interval(result[mean][k]) for mean, k in columns]
        test = result["micro_test"]
        p_value = f"{test['10']['p']:.4f}" if test else ""
        rows.append([result["label"], *cells, p_value])
    return rows


def _by_relation(
    results: Sequence[Mapping[str, Any]], values: Sequence[Mapping[str, float | None]]
) -> Table:
    """Return a row per relation, a column per result; ``values`` has relation -> value of each."""
    rows = [["relation", *(result["label"] for result in results)]]
    for relation in values[0]:
        cells = []
        for value_by_relation in values:
            value = value_by_relation[relation]
            cells.append("" if value is None else _percent(value))
        rows.append([relation, *cells])
    return rows


def _by_layer(results: Sequence[Mapping[str, Any]]) -> Table:
    models = list(dict.fromkeys(result["model"] for result in results))
    layers = list(dict.fromkeys(result["layer"] for result in results))
    cells = {(result["model"], result["layer"]): _two(result["micro"], 10) for result in results}
    rows = [["layers", *models]]
    for layer in layers:
        row = [cells.get((model, layer), "") for model in models]
        rows.append([_layer(layer), *row])
    return rows


def _layer_selection(query_set: Mapping[str, Any]) -> dict[str, Table]:
    """Return, for each model with several layers, the layers selected without gold."""
    tables = {}
    for model in dict.fromkeys(result["model"] for result in query_set["results"]):
        results = [result for result in query_set["results"] if result["model"] == model]
        if len(results) < 2:
            continue
        accuracy_SR = _value_array([result["by_relation"]["10"] for result in results])
        agreement_SR = _value_array([result["agreement"] for result in results])
        index_by_rule = select_candidates(accuracy_SR, agreement_SR)
        layers = [_layer(result["layer"]) for result in results]
        relations = list(results[0]["agreement"])
        scope = f"of {model}, {query_set['name']} set: acc@10, macro"
        tables[f"Label-free layer selection {scope}"] = selection_table(
            index_by_rule, accuracy_SR, layers
        )
        tables[f"The same by relation {scope}"] = relation_table(
            index_by_rule, accuracy_SR, layers, relations
        )
    return tables


def _value_array(values: Sequence[Mapping[str, float | None]]) -> np.ndarray:
    """Return values (S, R) with NaN for None."""
    # numpy reads None as NaN for this type.
    return np.array([list(row.values()) for row in values], dtype=np.float64)


def _layer(layer: int | None) -> str:
    return "all" if layer is None else str(layer)


def _published_pair(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.2f} / {pair[1]:.2f}"


def _two(scores: Mapping[str, Any], k: int) -> str:
    """Return acc@1 and acc@k."""
    return f"{_percent(scores['1']['value'])} / {_percent(scores[str(k)]['value'])}"


def _interval(score: Mapping[str, float]) -> str:
    return Interval(score["value"], score["low"], score["high"]).text()


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"
