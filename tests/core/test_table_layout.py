"""Layouts of tables: optional measures, cells of scores, and choices by what a table scores."""

import math

import pytest

from raybio.core.table_layout import TableLayout
from raybio.methods import METHODS

LAYOUT = TableLayout("Title", {"f1": "F1"}, {"dev": "dev"}, optional={"ign_f1": "Ign-F1"})
BOTH = {"dev": {"f1": {}, "ign_f1": {}}}
ONE = {"dev": {"f1": {}}}


def test_an_optional_measure_is_shown_if_all_rows_have_it() -> None:
    assert LAYOUT.shown([BOTH, BOTH]).measures == {"f1": "F1", "ign_f1": "Ign-F1"}


def test_an_optional_measure_is_hidden_if_a_row_or_a_split_lacks_it() -> None:
    for rows in ([BOTH, ONE], [BOTH | {"test": {"f1": {}}}], [], [{}]):
        assert LAYOUT.shown(rows).measures == {"f1": "F1"}


def test_the_cell_of_a_score_has_what_is_known_of_it() -> None:
    layout = TableLayout(
        "Title", {"f1": "F1", "rho": "rho"}, {"dev": "dev"}, plain=frozenset({"rho"})
    )
    nan = math.nan
    bounds = {"low": 0.5, "high": 0.75}
    cells: list[tuple[dict[str, float], str]] = [
        ({"value": 0.625}, "62.50"),
        ({"value": nan}, "undefined"),
        ({"value": nan, "num_runs": 2, **bounds}, "undefined"),
        ({"value": 0.625, **bounds}, "62.50 [50.00, 75.00]"),
        ({"value": 0.625, "low": nan, "high": nan}, "62.50"),
        ({"value": 0.625, "num_runs": 3, **bounds}, "62.50 ± 12.50"),
        (
            {"value": 0.625, "num_runs": 3, "deviation": 0.01, **bounds},
            "62.50 ± 1.00 [50.00, 75.00]",
        ),
        (
            {"value": 0.625, "num_runs": 2, "deviation": 0.01, "low": nan, "high": nan},
            "62.50 ± 1.00",
        ),
        ({"value": 0.625, "num_runs": 1, "low": nan, "high": nan}, "62.50"),
    ]
    assert [layout.cell(score, "f1") for score, _ in cells] == [cell for _, cell in cells]
    assert layout.cell({"value": 0.625, **bounds}, "rho") == "0.625 [0.500, 0.750]"


@pytest.mark.parametrize(
    "method, metric, is_optimistic",
    [
        ("sppt_protein", "val/link_ndcg", True),
        ("sppt_synthetic", "nodes/auroc", True),
        ("biostransformers", "val/text_to_term_recall_at_10", True),
        ("contrastive_probe", "val/hard_acc_at_10", True),
        ("contrastive_probe", "val/acc_at_10/may_treat", True),
        ("contrastive_probe", "val/held_out_mrr", False),
        ("contrastive_probe", "val/agreement_at_10", False),
        ("contrastive_probe", "val/agreement_at_10/may_treat", False),
        ("mtb_pretrain", "val/pair_mrr", True),
        ("relation_finetune", "val/f1", False),
        ("relation_graphs", "val/log_likelihood", False),
        ("finetune", "val/score", False),
    ],
)
def test_a_choice_by_what_the_table_scores_is_said(
    method: str, metric: str, is_optimistic: bool
) -> None:
    remark = METHODS[method].table.chosen_on_scored(metric)
    assert (remark is not None) == is_optimistic
    assert remark is None or metric in remark
