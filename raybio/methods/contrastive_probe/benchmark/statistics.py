"""Statistics of a benchmark as in Figure 1 and Table 6 of the paper: plain data and Markdown.

Letters per answer are the mean over queries of each query's mean. On the released files this is the
paper's 20.88; the mean over all answers is 21.23. Shares by length are over (query, answer) pairs.
On the released files, 4.4 % of these answers are a single word piece of bert-base-uncased; the
paper reports 2.6 % and does not define the denominator.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from raybio.core.markdown import markdown_table
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark
from raybio.methods.contrastive_probe.published import table_6

CountTokens = Callable[[Sequence[str]], Sequence[int]]
"""Names -> number of tokens of each."""


def benchmark_statistics(
    benchmark: ProbeBenchmark,
    hard: ProbeBenchmark | None = None,
    count_tokens: CountTokens | None = None,
) -> dict[str, Any]:
    """Return counts of a benchmark as plain JSON.

    Args:
        benchmark: the full set.
        hard: its hard set, for the counts of Figure 1.
        count_tokens: token counts of a tokenizer; None counts words.

    Returns:
        ``num_queries``, ``num_triples`` and more counts; ``relations``, each with its counts;
        ``share_by_length``: the share of answers of 1, 2, ... words or tokens, as ``unit`` says;
        and ``published`` (Table 6).
    """
    num_pairs = len(benchmark.answer_P)
    num_queries = len(benchmark.relation_Q)
    num_answers_Q = np.diff(benchmark.indptr_Q1)
    query_P = np.repeat(np.arange(num_queries), num_answers_Q)
    length_C = np.asarray((count_tokens or _count_words)(benchmark.names))
    lengths, counts = np.unique(length_C[benchmark.answer_P], return_counts=True)
    letters_C = np.array([len(name) for name in benchmark.names])
    total_letters_Q = np.bincount(query_P, letters_C[benchmark.answer_P], num_queries)
    letters_Q = total_letters_Q / num_answers_Q
    is_head_P = benchmark.head_Q[query_P] == benchmark.answer_P
    return {
        "num_relations": len(benchmark.relations),
        "num_queries": num_queries,
        "num_hard_queries": None if hard is None else len(hard.relation_Q),
        "num_triples": num_pairs,
        "num_names": len(benchmark.names),
        "num_heads": len(np.unique(benchmark.head_Q)),
        "num_tails": int(benchmark.is_tail_C.sum()),
        "num_queries_with_head_among_answers": int(is_head_P.sum()),
        "answers_per_query": num_pairs / num_queries,
        "letters_per_answer": float(letters_Q.mean()),
        "unit": "words" if count_tokens is None else "tokens",
        "share_by_length": {
            int(length): int(count) / num_pairs
            for length, count in zip(lengths, counts, strict=True)
        },
        "relations": _relations(benchmark, hard),
        "published": {name: dict(row) for name, row in table_6().items()},
    }


def statistics_markdown(data: Mapping[str, Any], name: str = "this benchmark") -> str:
    """Return the tables of ``benchmark_statistics``: Table 6 with published rows, and Figure 1."""
    unit = data["unit"]
    ours = dict(data)
    ours["single_token_share"] = data["share_by_length"].get(1, 0.0) if unit == "tokens" else None
    table_6_header = [
        "benchmark",
        "relations",
        "queries",
        "answers a query",
        "letters an answer",
        "answers of one token",
    ]
    table_6_rows = [_table_6_row(name, ours)]
    for published_name, row in table_6().items():
        table_6_rows.append(_table_6_row(f"{published_name} (published)", row))
    summary = (
        f"{data['num_triples']:,} triples of {data['num_heads']:,} heads and "
        f"{data['num_tails']:,} tails; {data['num_names']:,} names; "
        f"{data['num_queries_with_head_among_answers']:,} queries with the head among their "
        "answers."
    )
    count_columns = ["full", "hard", "triples", "heads", "tails"]
    count_rows = []
    for relation in data["relations"]:
        counts = [relation[column] for column in count_columns]
        cells = ["" if count is None else f"{count:,}" for count in counts]
        count_rows.append([relation["relation"], *cells])
    sections = [
        "## The benchmark",
        markdown_table(table_6_header, table_6_rows),
        summary,
        markdown_table(["relation", *count_columns], count_rows),
        markdown_table([unit, "answers"], _length_rows(data["share_by_length"])),
    ]
    return "\n\n".join(sections)


def _relations(benchmark: ProbeBenchmark, hard: ProbeBenchmark | None) -> list[dict[str, Any]]:
    num_hard: dict[str, int] = {}
    if hard is not None:
        counts = np.bincount(hard.relation_Q).tolist()
        num_hard = dict(zip(hard.relations, counts, strict=True))
    relation_P = np.repeat(benchmark.relation_Q, np.diff(benchmark.indptr_Q1))
    rows = []
    for index, relation in enumerate(benchmark.relations):
        is_here_Q = benchmark.relation_Q == index
        is_here_P = relation_P == index
        rows.append(
            {
                "relation": relation,
                "full": int(is_here_Q.sum()),
                "hard": None if hard is None else num_hard.get(relation, 0),
                "triples": int(is_here_P.sum()),
                "heads": len(np.unique(benchmark.head_Q[is_here_Q])),
                "tails": len(np.unique(benchmark.answer_P[is_here_P])),
            }
        )
    return rows


def _length_rows(share_by_length: Mapping[int, float]) -> list[list[str]]:
    """Return a row for each length; the last row joins all lengths beyond 99 % of the answers."""
    rows: list[list[str]] = []
    total = 0.0
    for length, share in share_by_length.items():
        if total >= 0.99:
            rows.append([f"{length} or more", f"{1 - total:.1%}"])
            break
        rows.append([f"{length}", f"{share:.1%}"])
        total += share
    return rows


def _count_words(names: Sequence[str]) -> list[int]:
    return [len(name.split()) for name in names]


def _table_6_row(name: str, row: Mapping[str, Any]) -> list[str]:
    single_token_share = row["single_token_share"]
    return [
        name,
        f"{row['num_relations']:,}",
        f"{row['num_queries']:,}",
        f"{row['answers_per_query']:.3g}",
        f"{row['letters_per_answer']:.2f}",
        "" if single_token_share is None else f"{single_token_share:.1%}",
    ]
