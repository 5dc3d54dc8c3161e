"""Retrieval of documents for queries: measures of each query, chance, and a report of scorers.

The measures are those of sentence-transformers' ``InformationRetrievalEvaluator``: relevance is yes
or no, ranks are among all documents, and means are over queries.

Shape letters: U queries, each with a relevant document, C documents, P (query, relevant document)
pairs, K ranks.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from raybio.core.arrays import Floats, Integers
from raybio.core.errors import ConfigError
from raybio.core.final_report import FinalReport, Stage, UnitScores
from raybio.core.table_layout import TableLayout
from raybio.evaluation.evaluator import bootstrap_seed, exact_scores
from raybio.evaluation.lexical import BASELINES, TextScorer
from raybio.evaluation.unit_scores import TRAINED, sample_units
from raybio.ops.chance import expected_hit, expected_recall
from raybio.ops.retrieval import Retrieval, retrieve
from raybio.ops.significance import mean_interval

CUTOFFS = (1, 3, 5, 10, 100)
"""Cut-offs of accuracy, precision and recall: sentence-transformers' defaults, and BEIR's 100."""

NDCG_CUTOFF = 10
MRR_CUTOFF = 10
MAP_CUTOFF = 100

SPLIT = "queries"

RETRIEVAL = TableLayout(
    title="Retrieval",
    measures={
        "ndcg_at_10": "nDCG@10",
        "mrr_at_10": "MRR@10",
        "map_at_100": "MAP@100",
        "accuracy_at_1": "Accuracy@1",
        "precision_at_10": "Precision@10",
        "recall_at_10": "Recall@10",
        "recall_at_100": "Recall@100",
    },
    splits={SPLIT: "queries"},
    chance="documents in random order, exactly",
    plain=frozenset({"ndcg_at_10", "mrr_at_10", "map_at_100"}),
)


def query_measures(retrieval: Retrieval) -> dict[str, Floats]:
    """Return the measures (U,) of each query; their means are the scores.

    With R relevant documents at 0-based ranks r:

    - nDCG@k = sum over r < k of 1 / log2(r + 2), over its largest possible value;
    - MRR@k = 1 / (1 + smallest r), 0 if that is k or more;
    - MAP@k = sum over r < k of (found up to r) / (r + 1), over min(k, R);
    - accuracy@k: whether any r < k; precision@k and recall@k: their number over k and over R.
    """
    num_gold_U = np.asarray(retrieval.num_gold_Q)
    query_P = np.repeat(np.arange(len(num_gold_U)), num_gold_U)
    # Ascending ranks within each query.
    rank_P = retrieval.rank_P[np.lexsort((retrieval.rank_P, query_P))].astype(np.float64)
    found_P = np.arange(len(rank_P)) - retrieval.indptr[query_P] + 1

    def summed(value_P: Floats, cutoff: int) -> Floats:
        weights = np.where(rank_P < cutoff, value_P, 0.0)
        return np.asarray(np.bincount(query_P, weights, minlength=len(num_gold_U)), np.float64)

    best_U = rank_P[retrieval.indptr[:-1]]
    measures = {
        f"ndcg_at_{NDCG_CUTOFF}": summed(1 / np.log2(rank_P + 2), NDCG_CUTOFF)
        / _ideal_gain(num_gold_U, NDCG_CUTOFF),
        f"mrr_at_{MRR_CUTOFF}": np.where(best_U < MRR_CUTOFF, 1 / (1 + best_U), 0.0),
        f"map_at_{MAP_CUTOFF}": summed(found_P / (rank_P + 1), MAP_CUTOFF)
        / np.minimum(MAP_CUTOFF, num_gold_U),
    }
    for k in CUTOFFS:
        hits_U = retrieval.hits_at(k)
        measures[f"accuracy_at_{k}"] = (hits_U > 0).astype(np.float64)
        measures[f"precision_at_{k}"] = hits_U / k
        measures[f"recall_at_{k}"] = hits_U / num_gold_U
    return measures


def chance_measures(num_gold_U: Integers, num_documents: int) -> dict[str, float]:
    """Return the expected scores of documents in random order, exactly.

    A rank holds a relevant document with probability R / C. A share (R - 1) / (C - 1) of the
    documents before it is then relevant.
    """
    share_U = num_gold_U / num_documents
    rank_K = np.arange(min(MAP_CUTOFF, num_documents))
    before_UK = rank_K * ((num_gold_U - 1) / max(num_documents - 1, 1))[:, None]
    precision_U = ((1 + before_UK) / (rank_K + 1)).sum(axis=1) * share_U
    gain = (1 / np.log2(np.arange(min(NDCG_CUTOFF, num_documents)) + 2)).sum()
    # The first relevant one has rank k with the probability of a hit at k + 1 and none at k.
    hit_KU = [expected_hit(k, num_gold_U, num_documents) for k in range(MRR_CUTOFF + 1)]
    first_KU = np.diff(np.stack(hit_KU), axis=0)
    measures = {
        f"ndcg_at_{NDCG_CUTOFF}": share_U * gain / _ideal_gain(num_gold_U, NDCG_CUTOFF),
        f"mrr_at_{MRR_CUTOFF}": (first_KU / np.arange(1, MRR_CUTOFF + 1)[:, None]).sum(axis=0),
        f"map_at_{MAP_CUTOFF}": precision_U / np.minimum(MAP_CUTOFF, num_gold_U),
    }
    for k in CUTOFFS:
        recall = expected_recall(k, num_documents)
        measures[f"accuracy_at_{k}"] = expected_hit(k, num_gold_U, num_documents)
        measures[f"precision_at_{k}"] = recall * num_gold_U / k
        measures[f"recall_at_{k}"] = np.broadcast_to(recall, num_gold_U.shape)
    return {name: float(value_U.mean()) for name, value_U in measures.items()}


def retrieval_report(
    models: Mapping[str, TextScorer],
    documents: Sequence[str],
    queries: Sequence[str],
    indptr: Integers,
    indices: Integers,
    *,
    unit_U: Integers,
    seed: int = 0,
    remarks: Sequence[str] = (),
) -> FinalReport:
    """Return the report of the first model, and rows of TF-IDF, BM25 and the other models.

    Ties are ordered by document for models, and at random for TF-IDF and BM25, since most documents
    share no word with a query.

    Args:
        models: at least one, by the name of its row.
        documents: texts (C) of all documents.
        queries: texts (U) of queries that have a relevant document.
        indptr: (U + 1,) row pointers of relevant documents.
        indices: (P,) relevant documents.
        unit_U: numbers of the queries, for unit scores.
        seed: of the bootstrap.
        remarks: shown below the table.

    Raises:
        ConfigError: if a model has the name of another row.
        ValueError: if embeddings are not finite.
    """
    for name in models:
        if name in ("chance", TRAINED, *BASELINES):
            raise ConfigError(f"--model {name}: is the name of another row; give its path")
    num_gold_U = np.diff(indptr)
    chance = exact_scores(chance_measures(num_gold_U, len(documents)))
    scores: dict[Stage, dict[str, dict[str, dict[str, float]]]] = {"chance": {SPLIT: chance}}
    unit_scores: dict[Stage, dict[str, UnitScores]] = {}
    for stage, scorer in _scorers(models):
        ranks = retrieve(scorer(queries, documents), indptr, indices)
        value_by_measure = query_measures(ranks)
        # All rows with the same resamples.
        rng = np.random.default_rng(bootstrap_seed(seed))
        intervals = {name: mean_interval(values, rng) for name, values in value_by_measure.items()}
        scores[stage] = {SPLIT: {name: each._asdict() for name, each in intervals.items()}}
        unit_scores[stage] = {SPLIT: sample_units(unit_U, value_by_measure)}
    size = (
        f"{len(queries):,} queries, {len(documents):,} documents, {len(indices):,} relevant pairs"
    )
    return FinalReport(
        scores=scores, unit_scores=unit_scores, sizes={SPLIT: size}, remarks=list(remarks)
    )


def _scorers(models: Mapping[str, TextScorer]) -> Iterator[tuple[Stage, TextScorer]]:
    """Yield all rows in the order of the report; the first model is reported as the trained one."""
    yield from BASELINES.items()
    first, *others = models
    for name in others:
        yield name, models[name]
    yield TRAINED, models[first]


def _ideal_gain(num_gold_U: Integers, cutoff: int) -> Floats:
    gain_K = np.cumsum(1 / np.log2(np.arange(cutoff) + 2))
    return np.asarray(gain_K[np.minimum(num_gold_U, cutoff) - 1])
