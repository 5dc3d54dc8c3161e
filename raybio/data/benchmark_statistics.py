"""What a probe's benchmark is made of, as the MedLAMA paper's Figure 1 and Table 6 show it: plain data, and Markdown.

Letters an answer are the mean over queries of each query's own mean, which gives the paper's 20.88 on the released
files (over all answers it is 21.23). Shares by length are over (query, answer) pairs, so an answer counts as often as
it is asked for; 4.4 % are a single word piece of bert-base-uncased's. The paper has 2.6 % and does not say of what.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from raybio.data.probe_benchmark import ProbeBenchmark
from raybio.markdown import markdown_table

PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "LAMA": {
        "num_relations": 41,
        "num_queries": 41_000,
        "answers_per_query": 1,
        "letters_per_answer": 7.11,
        "single_token_share": 1.0,
    },
    "BioLAMA": {
        "num_relations": 36,
        "num_queries": 49_000,
        "answers_per_query": 1,
        "letters_per_answer": 18.40,
        "single_token_share": 0.022,
    },
    "MedLAMA": {
        "num_relations": 19,
        "num_queries": 19_000,
        "answers_per_query": 2.3,
        "letters_per_answer": 20.88,
        "single_token_share": 0.026,
    },
}
"""The paper's Table 6; tokens are bert-base-uncased's word pieces, queries are rounded to thousands."""

CountTokens = Callable[[Sequence[str]], Sequence[int]]
"""Names -> how many tokens each has."""


def benchmark_statistics(
    benchmark: ProbeBenchmark, hard: ProbeBenchmark | None = None, count_tokens: CountTokens | None = None
) -> dict[str, Any]:
    """Counts of a benchmark as plain JSON.

    Args:
        benchmark: the full set.
        hard: its hard set, for the counts of Figure 1.
        count_tokens: a tokenizer's counts; words between blanks if None.

    Returns:
        ``num_queries``, ``num_triples`` and further counts; ``relations``, each with its counts;
        ``share_by_length``: the share of answers of 1, 2, ... words or tokens, whichever ``unit`` says; and
        ``published``.
    """
    num_P, num_Q = len(benchmark.answer_P), len(benchmark.relation_Q)
    num_answers_Q = np.diff(benchmark.indptr_Q1)
    query_P = np.repeat(np.arange(num_Q), num_answers_Q)
    length_C = np.asarray((count_tokens or _count_words)(benchmark.names))
    lengths, counts = np.unique(length_C[benchmark.answer_P], return_counts=True)
    letters_C = np.array([len(name) for name in benchmark.names])
    letters_Q = np.bincount(query_P, letters_C[benchmark.answer_P], num_Q) / num_answers_Q
    is_head_P = benchmark.head_Q[query_P] == benchmark.answer_P
    return {
        "num_relations": len(benchmark.relations),
        "num_queries": num_Q,
        "num_hard_queries": None if hard is None else len(hard.relation_Q),
        "num_triples": num_P,
        "num_names": len(benchmark.names),
        "num_heads": len(np.unique(benchmark.head_Q)),
        "num_tails": int(benchmark.is_tail_C.sum()),
        "num_queries_with_head_among_answers": int(is_head_P.sum()),
        "answers_per_query": num_P / num_Q,
        "letters_per_answer": float(letters_Q.mean()),
        "unit": "words" if count_tokens is None else "tokens",
        "share_by_length": {int(length): int(count) / num_P for length, count in zip(lengths, counts, strict=True)},
        "relations": _relations(benchmark, hard),
        "published": {name: dict(row) for name, row in PUBLISHED.items()},
    }


def statistics_markdown(data: Mapping[str, Any], name: str = "this benchmark") -> str:
    """Tables of ``benchmark_statistics``: Table 6 with the published rows, Figure 1 left and right."""
    unit = data["unit"]
    single = data["share_by_length"].get(1, 0.0)
    ours = {**data, "single_token_share": single if unit == "tokens" else None}
    rows = [_table_6_row(name, ours), *(_table_6_row(f"{one} (published)", row) for one, row in PUBLISHED.items())]
    header = ["benchmark", "relations", "queries", "answers a query", "letters an answer", "answers of one token"]
    facts = (
        f"{data['num_triples']:,} triples of {data['num_heads']:,} heads and {data['num_tails']:,} tails; "
        f"{data['num_names']:,} names; {data['num_queries_with_head_among_answers']:,} queries with the head among "
        "their answers."
    )
    columns = ["relation", "full", "hard", "triples", "heads", "tails"]
    counts = [
        [one["relation"], *("" if one[column] is None else f"{one[column]:,}" for column in columns[1:])]
        for one in data["relations"]
    ]
    lengths = [[f"{length}", f"{share:.1%}"] for length, share in data["share_by_length"].items()]
    return "\n\n".join(
        [
            "## The benchmark",
            markdown_table(header, rows),
            facts,
            markdown_table(columns, counts),
            markdown_table([unit, "answers"], lengths),
        ]
    )


def _relations(benchmark: ProbeBenchmark, hard: ProbeBenchmark | None) -> list[dict[str, Any]]:
    num_hard = {} if hard is None else dict(zip(hard.relations, np.bincount(hard.relation_Q).tolist(), strict=True))
    relation_P = np.repeat(benchmark.relation_Q, np.diff(benchmark.indptr_Q1))
    return [
        {
            "relation": relation,
            "full": int((benchmark.relation_Q == number).sum()),
            "hard": None if hard is None else num_hard.get(relation, 0),
            "triples": int((relation_P == number).sum()),
            "heads": len(np.unique(benchmark.head_Q[benchmark.relation_Q == number])),
            "tails": len(np.unique(benchmark.answer_P[relation_P == number])),
        }
        for number, relation in enumerate(benchmark.relations)
    ]


def _count_words(names: Sequence[str]) -> list[int]:
    return [len(name.split()) for name in names]


def _table_6_row(name: str, row: Mapping[str, Any]) -> list[str]:
    single = row["single_token_share"]
    return [
        name,
        f"{row['num_relations']:,}",
        f"{row['num_queries']:,}",
        f"{row['answers_per_query']:.3g}",
        f"{row['letters_per_answer']:.2f}",
        "" if single is None else f"{single:.1%}",
    ]
