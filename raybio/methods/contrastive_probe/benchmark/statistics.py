"""What a probe's benchmark is made of, as the MedLAMA paper's Figure 1 and Table 6 show it: plain data, and Markdown.

Letters an answer are the mean over queries of each query's own mean, which gives the paper's 20.88 on the released
files (over all answers it is 21.23). Shares by length are over (query, answer) pairs, so an answer counts as often as
it is asked for; 4.4 % are a single word piece of bert-base-uncased's. The paper has 2.6 % and does not say of what.

Which queries of a MedLAMA folder are hard by its own files, by the authors' code and by the clean scores.

How much of an answer's name already stands in the name that is asked about: what makes a probe's query easy.

MedLAMA's hardness filter (facts §2.4; the paper's Appendix). For a head h and its n tails t, in lower case:
``avg_match`` is the share of tails that are part of h, ``avg_rouge_l`` the mean ROUGE-L F1 of h against t, where
F1 = 2PR / (P + R) with P = LCS / words of h, R = LCS / words of t, and LCS is the longest common subsequence of words.

The authors' code differs in three ways, each with an effect on the released scores; ``legacy`` reproduces it:
tails keep the blanks that stood around "||" where there are several, so that few of them are part of h; P and R divide
by the number of *distinct* words; and full stops separate words as blanks do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from raybio.core.errors import DataError
from raybio.core.markdown import markdown_table
from raybio.methods.contrastive_probe.benchmark.medlama import (
    COLUMNS,
    SEPARATOR,
    ProbeBenchmark,
    medlama_files,
    medlama_rows,
)

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
    benchmark: ProbeBenchmark,
    hard: ProbeBenchmark | None = None,
    count_tokens: CountTokens | None = None,
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
        "share_by_length": {
            int(length): int(count) / num_P for length, count in zip(lengths, counts, strict=True)
        },
        "relations": _relations(benchmark, hard),
        "published": {name: dict(row) for name, row in PUBLISHED.items()},
    }


def statistics_markdown(data: Mapping[str, Any], name: str = "this benchmark") -> str:
    """Tables of ``benchmark_statistics``: Table 6 with the published rows, Figure 1 left and right."""
    unit = data["unit"]
    single = data["share_by_length"].get(1, 0.0)
    ours = {**data, "single_token_share": single if unit == "tokens" else None}
    rows = [
        _table_6_row(name, ours),
        *(_table_6_row(f"{one} (published)", row) for one, row in PUBLISHED.items()),
    ]
    header = [
        "benchmark",
        "relations",
        "queries",
        "answers a query",
        "letters an answer",
        "answers of one token",
    ]
    facts = (
        f"{data['num_triples']:,} triples of {data['num_heads']:,} heads and {data['num_tails']:,} tails; "
        f"{data['num_names']:,} names; {data['num_queries_with_head_among_answers']:,} queries with the head among "
        "their answers."
    )
    columns = ["relation", "full", "hard", "triples", "heads", "tails"]
    counts = [
        [
            one["relation"],
            *("" if one[column] is None else f"{one[column]:,}" for column in columns[1:]),
        ]
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
    num_hard = (
        {}
        if hard is None
        else dict(zip(hard.relations, np.bincount(hard.relation_Q).tolist(), strict=True))
    )
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


class Overlap(NamedTuple):
    """Two means over the tails of a query, in [0, 1]; under ``legacy`` a repeated word may lift ROUGE-L above 1."""

    avg_match: float
    avg_rouge_l: float

    @property
    def is_hard(self) -> bool:
        """Whether the name that is asked about gives little away: both scores at most 0.1."""
        return max(self) <= LARGEST_OVERLAP + _SLACK


@dataclass(frozen=True)
class Hardness:
    """One query of the full set, judged three times.

    Attributes:
        file: its file's name.
        line: and where it ends there.
        relation: of the query.
        head: the head's name.
        stored: the scores that the file has.
        legacy: as the authors' code reckons them.
        clean: as they are meant.
    """

    file: str
    line: int
    relation: str
    head: str
    stored: Overlap
    legacy: Overlap
    clean: Overlap

    @property
    def is_disputed(self) -> bool:
        """Whether the three disagree on the query."""
        return len({self.stored.is_hard, self.legacy.is_hard, self.clean.is_hard}) > 1


def read_hardness(folder: str | Path) -> Iterator[Hardness]:
    """Judge every query of the full set, in order of relation and line.

    Raises:
        DataError: for files that are missing or of another layout, with file and line.
    """
    for path in medlama_files(Path(folder))["full"]:
        for line, row in medlama_rows(path, (*COLUMNS, "avg_match", "avg_rouge_l")):
            try:
                stored = Overlap(float(row["avg_match"]), float(row["avg_rouge_l"]))
            except ValueError as error:
                raise DataError(
                    f"{path}, line {line}: {error}; want numbers for avg_match and avg_rouge_l"
                ) from None
            head, tails = row["head_name"], row["tail_names"].split(SEPARATOR)
            legacy, clean = name_overlap(head, tails, legacy=True), name_overlap(head, tails)
            yield Hardness(path.name, line, row["rel"], head, stored, legacy, clean)


LARGEST_OVERLAP = 0.1


_DUST = 1e-8
"""The authors' ROUGE adds it to P + R, which is why a score of exactly 1/10 is kept in the released hard sets."""


_SLACK = 1e-9


def name_overlap(head: str, tails: Sequence[str], *, legacy: bool = False) -> Overlap:
    """What ``head`` gives away of ``tails``.

    Args:
        head: the name that is asked about, without the prompt's words.
        tails: names of all answers, at least one.
        legacy: as in the authors' code.

    Raises:
        ValueError: without tails.
    """
    if not tails:
        raise ValueError("a query has no tails, want at least one")
    lower, lower_tails = head.lower(), [tail.lower() for tail in tails]
    last = len(tails) - 1
    sought = lower_tails
    if legacy:
        sought = [
            " " * (place > 0) + tail + " " * (place < last)
            for place, tail in enumerate(lower_tails)
        ]
    num_matches = sum(tail in lower for tail in sought)
    total_rouge_l = sum(rouge_l_f1(lower, tail, legacy=legacy) for tail in lower_tails)
    return Overlap(num_matches / len(tails), total_rouge_l / len(tails))


def rouge_l_f1(hypothesis: str, reference: str, *, legacy: bool = False) -> float:
    """ROUGE-L F1 of two texts (Lin and Och, 2004, with beta = 1); 0 where either has no words."""
    words_h, words_r = _words(hypothesis, legacy), _words(reference, legacy)
    if not words_h or not words_r:
        return 0.0
    common = longest_common_subsequence(words_h, words_r)
    precision = common / len(set(words_h) if legacy else words_h)
    recall = common / len(set(words_r) if legacy else words_r)
    total = precision + recall + (_DUST if legacy else 0)
    return 2 * precision * recall / total if common else 0.0


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest sequence that is left of both when items are struck out."""
    # The row of the table that belongs to the items of ``first`` seen so far, a column for each prefix of ``second``.
    row = [0] * (len(second) + 1)
    for item in first:
        diagonal = 0
        for column, other in enumerate(second, start=1):
            above = row[column]
            row[column] = diagonal + 1 if item == other else max(above, row[column - 1])
            diagonal = above
    return row[-1]


def _words(text: str, legacy: bool) -> list[str]:
    return (text.replace(".", " ") if legacy else text).split()
