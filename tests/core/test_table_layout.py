"""Measures that only some stores define are shown where all rows have them."""

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


@pytest.mark.parametrize(
    "method, metric, is_optimistic",
    [
        ("sppt_protein", "val/link_ndcg", True),
        ("sppt_synthetic", "nodes/auroc", True),
        ("biostransformers", "val/text_to_term_recall_at_10", True),
        ("contrastive_probe", "val/hard_acc_at_10", True),
        ("contrastive_probe", "val/held_out_mrr", False),
        ("contrastive_probe", "val/agreement_at_10", False),
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
