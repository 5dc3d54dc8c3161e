"""Slow reference implementations of pure functions: loops over scalars, from the definitions."""

import math
from collections.abc import Iterable, Sequence

import numpy as np


def neighbors_of(edges: Iterable[tuple[int, int]], num_nodes: int) -> list[set[int]]:
    """Return the set of neighbors of each node, without self pairs."""
    neighbors: list[set[int]] = [set() for _ in range(num_nodes)]
    for u, v in edges:
        if u != v:
            neighbors[u].add(v)
            neighbors[v].add(u)
    return neighbors


def allowed_negatives(neighbors: list[set[int]], group: Sequence[int], node: int) -> set[int]:
    """Return the non-neighbors of a node in its group; if none, those of other groups."""
    free = {other for other in range(len(group)) if other != node and other not in neighbors[node]}
    inside = {other for other in free if group[other] == group[node]}
    return inside or free


def cosine(left: np.ndarray, right: np.ndarray) -> float:
    """Return the cosine of two vectors; 0 for a zero vector."""
    dot = sum(float(a) * float(b) for a, b in zip(left, right, strict=True))
    length = math.sqrt(sum(float(a) ** 2 for a in left)) * math.sqrt(
        sum(float(b) ** 2 for b in right)
    )
    return dot / length if length else 0.0


def distance(left: np.ndarray, right: np.ndarray) -> float:
    """Return the Euclidean distance of two vectors."""
    return math.sqrt(sum((float(a) - float(b)) ** 2 for a, b in zip(left, right, strict=True)))


def info_nce(
    anchor: np.ndarray,
    candidate: np.ndarray,
    positive: Sequence[int],
    temperature: float,
    ignore=None,
) -> float:
    """Return the mean of -log softmax at the positive."""
    total = 0.0
    for i in range(len(anchor)):
        kept = [
            j
            for j in range(len(candidate))
            if j == positive[i] or ignore is None or not ignore[i][j]
        ]
        score = {j: cosine(anchor[i], candidate[j]) / temperature for j in kept}
        top = max(score.values())
        total += top + math.log(sum(math.exp(s - top) for s in score.values())) - score[positive[i]]
    return total / len(anchor)


def multi_similarity(
    embedding: np.ndarray,
    linked,
    positive_weight,
    negative_weight,
    threshold,
    mining_margin=None,
    ignore=None,
) -> tuple[float, list[float | None]]:
    """Return the mean loss and each anchor's loss, None if skipped (code of McDermott et al.)."""
    losses: list[float | None] = []
    num = len(embedding)
    for i in range(num):
        pairs = [j for j in range(num) if j != i and not (ignore is not None and ignore[i][j])]
        score = {j: cosine(embedding[i], embedding[j]) for j in pairs}
        positives = [j for j in pairs if linked[i][j]]
        negatives = [j for j in pairs if not linked[i][j]]
        if mining_margin is not None and positives and negatives:
            nearest_negative = max(score[n] for n in negatives)
            farthest_positive = min(score[p] for p in positives)
            negatives = [n for n in negatives if score[n] + mining_margin > farthest_positive]
            positives = [p for p in positives if score[p] - mining_margin < nearest_negative]
        if not positives or not negatives:
            losses.append(None)
            continue
        pull = math.log(
            1 + sum(math.exp(-positive_weight * (score[p] - threshold)) for p in positives)
        )
        push = math.log(
            1 + sum(math.exp(negative_weight * (score[n] - threshold)) for n in negatives)
        )
        losses.append(pull / positive_weight + push / negative_weight)
    counted = [loss for loss in losses if loss is not None]
    return (sum(counted) / len(counted) if counted else 0.0), losses


def multi_similarity_global(
    embedding, linked, positive_weight, negative_weight, threshold, ignore=None
) -> float:
    """Return the multi-similarity loss as McDermott et al. print it."""
    num = len(embedding)
    pull = 1.0
    push = 1.0
    for i in range(num):
        for j in range(num):
            if i == j or (ignore is not None and ignore[i][j]):
                continue
            dot = sum(float(a) * float(b) for a, b in zip(embedding[i], embedding[j], strict=True))
            if linked[i][j]:
                pull += math.exp(-positive_weight * (dot - threshold))
            else:
                push += math.exp(negative_weight * (dot - threshold))
    return math.log(pull) / (num * positive_weight) + math.log(push) / (num * negative_weight)


def margin_contrastive(anchor, positive, negative, positive_margin, negative_margin) -> float:
    """Return the sum of the two means of the contrastive loss, as McDermott et al. print it."""
    num = len(anchor)
    pull = sum(max(distance(anchor[i], positive[i]) - positive_margin, 0.0) for i in range(num))
    push = sum(max(negative_margin - distance(anchor[i], negative[i]), 0.0) for i in range(num))
    return pull / num + push / num


def retrieval_of_group(
    score: np.ndarray, linked: np.ndarray, ignore: np.ndarray | None = None
) -> dict[int, dict]:
    """Return the measures of each anchor of one group.

    The measures are lrap, ndcg, reciprocal_rank, num_links, precision_sum and hits by cut-off.
    ``score`` and ``linked`` are (n, n); the diagonal and ``ignore`` are no candidates.
    """
    num = len(score)
    candidates = []
    pairs = []
    for i in range(num):
        others = [j for j in range(num) if j != i and not (ignore is not None and ignore[i][j])]
        candidates.append(others)
        pairs += [(float(score[i][j]), bool(linked[i][j])) for j in others]
    result = {}
    for i in range(num):
        links = [j for j in candidates[i] if linked[i][j]]
        if not links:
            continue
        precisions = []
        reciprocal_ranks = []
        ranks = []
        pooled = []
        hits = dict.fromkeys((1, 5, 10, 25, 100), 0.0)
        for j in links:
            value = score[i][j]
            at_least = [k for k in candidates[i] if score[i][k] >= value]
            above = sum(1 for k in candidates[i] if score[i][k] > value)
            tied = len(at_least) - above
            precisions.append(sum(1 for k in at_least if linked[i][k]) / len(at_least))
            reciprocal_ranks.append(1 / (above + (tied + 1) / 2))
            tied_before = sum(1 for k in candidates[i] if score[i][k] == value and k < j)
            ranks.append(above + tied_before + 1)
            for cutoff in hits:
                tied_ranks = range(above + 1, above + tied + 1)
                hits[cutoff] += sum(1 for rank in tied_ranks if rank <= cutoff) / tied
            reached = [is_link for other, is_link in pairs if other >= value]
            pooled.append(sum(reached) / len(reached))
        ideal = sum(1 / math.log2(rank + 1) for rank in range(1, len(links) + 1))
        result[i] = {
            "lrap": sum(precisions) / len(links),
            "ndcg": sum(1 / math.log2(rank + 1) for rank in ranks) / ideal,
            "reciprocal_rank": max(reciprocal_ranks),
            "num_links": len(links),
            "precision_sum": sum(pooled),
            "hits": hits,
        }
    return result


def gold_ranks(score: np.ndarray, gold: Sequence[Sequence[int]]) -> list[int]:
    """Return the rank of each gold candidate of each query, ties ordered by index, from 0 on."""
    ranks = []
    candidates = range(score.shape[1])
    for query, gold_of_query in enumerate(gold):
        for g in gold_of_query:
            above = [c for c in candidates if score[query][c] > score[query][g]]
            tied_before = [c for c in candidates if score[query][c] == score[query][g] and c < g]
            ranks.append(len(above) + len(tied_before))
    return ranks


def mean_reciprocal_rank(score: np.ndarray, gold: Sequence[Sequence[int]]) -> float:
    """Return the mean of 1 / (1 + rank) of the best gold candidates, ties ordered by index."""
    values = []
    for query, gold_of_query in enumerate(gold):
        order = sorted(range(score.shape[1]), key=lambda c, query=query: (-score[query][c], c))
        if gold_of_query:
            values.append(1 / (1 + min(order.index(g) for g in gold_of_query)))
    return sum(values) / len(values)


def r_precision(score: np.ndarray, gold: Sequence[Sequence[int]]) -> list[float | None]:
    """Return the share of gold among each query's first |gold| candidates; None without gold."""
    values: list[float | None] = []
    for query, gold_of_query in enumerate(gold):
        order = sorted(range(score.shape[1]), key=lambda c, query=query: (-score[query][c], c))
        hits = set(order[: len(gold_of_query)]) & set(gold_of_query)
        values.append(len(hits) / len(gold_of_query) if gold_of_query else None)
    return values


def sign_flip_p(difference: Sequence[float]) -> float:
    """Return the share of the 2^n sign patterns whose sum is at least as far from 0."""
    observed = abs(sum(difference))
    num_as_far = 0
    for pattern in range(2 ** len(difference)):
        flipped = sum(d if pattern >> i & 1 else -d for i, d in enumerate(difference))
        num_as_far += abs(flipped) >= observed - 1e-12
    return num_as_far / 2 ** len(difference)


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence, trying all of ``first``."""
    best = 0
    for mask in range(2 ** len(first)):
        wanted = [item for index, item in enumerate(first) if mask >> index & 1]
        rest = iter(second)
        if all(item in rest for item in wanted):
            best = max(best, len(wanted))
    return best


def bm25(
    query: Sequence[str], documents: Sequence[Sequence[str]], k1: float, b: float
) -> list[float]:
    """Return BM25 scores (Robertson and Zaragoza, 2009) with the idf that is never negative."""
    mean_length = sum(len(words) for words in documents) / len(documents)
    scores = []
    for words in documents:
        total = 0.0
        for term in query:
            num_with = sum(term in other for other in documents)
            idf = math.log(1 + (len(documents) - num_with + 0.5) / (num_with + 0.5))
            count = words.count(term)
            total += idf * count * (k1 + 1) / (count + k1 * (1 - b + b * len(words) / mean_length))
        scores.append(total)
    return scores


def link_retrieval(
    scores: Sequence[np.ndarray], linkeds: Sequence[np.ndarray], ignores=None
) -> dict[str, float]:
    """Return the metrics aggregated over groups, which are given as square matrices."""
    ignores = ignores or [None] * len(scores)
    groups = [retrieval_of_group(*group) for group in zip(scores, linkeds, ignores, strict=True)]
    anchors = [anchor for group in groups for anchor in group.values()]
    average_precision = sum(
        len(group)
        * sum(anchor["precision_sum"] for anchor in group.values())
        / sum(anchor["num_links"] for anchor in group.values())
        for group in groups
        if group
    )
    metrics = {
        "lrap": sum(anchor["lrap"] for anchor in anchors) / len(anchors),
        "ndcg": sum(anchor["ndcg"] for anchor in anchors) / len(anchors),
        "mrr": sum(anchor["reciprocal_rank"] for anchor in anchors) / len(anchors),
        "average_precision": average_precision / len(anchors),
    }
    num_links = sum(anchor["num_links"] for anchor in anchors)
    for k in (1, 5, 10, 25, 100):
        hits = sum(anchor["hits"][k] for anchor in anchors)
        metrics[f"precision_at_{k}"] = hits / k / len(anchors)
        metrics[f"recall_at_{k}"] = hits / num_links
    return metrics


def nearest(query: np.ndarray, candidate: np.ndarray, k: int) -> list[list[int]]:
    """Return the k nearest by Euclidean distance; ties in float32 are ordered by index."""
    nearest_by_query = []
    for vector in query.astype(np.float64):
        squares = [
            np.float32(((vector - other) ** 2).sum()) for other in candidate.astype(np.float64)
        ]
        order = sorted(range(len(candidate)), key=lambda c, squares=squares: (squares[c], c))
        nearest_by_query.append(order[:k])
    return nearest_by_query


def agreement(
    queries: Sequence[int],
    first: Sequence[Sequence[int]],
    second: Sequence[Sequence[int]],
    near_head: Sequence[Sequence[int]],
) -> float:
    """Return the chance-corrected share of names that both wordings of a query retrieve.

    Names near the query's head do not count, and -1 is no name. Chance is the share with the
    wordings of other queries.
    """

    def far(names: Sequence[int], query: int) -> set[int]:
        return {name for name in names if name >= 0 and name not in near_head[query]}

    def share(query: int, other: int) -> float:
        return len(far(first[query], query) & far(second[other], other)) / len(first[query])

    own = sum(share(q, q) for q in queries) / len(queries)
    others = [share(q, p) for q in queries for p in range(len(second)) if p != q]
    chance = sum(others) / len(others)
    return (own - chance) / (1 - chance)


def first_of_the_highest_means(rows: Sequence[Sequence[float]]) -> int:
    """Return the index of the first row with the highest mean, NaN ignored."""
    best = 0
    best_mean = -math.inf
    for index, row in enumerate(rows):
        numbers = [value for value in row if not math.isnan(value)]
        mean = sum(numbers) / len(numbers)
        if mean > best_mean:
            best = index
            best_mean = mean
    return best


def first_of_the_highest(rows: Sequence[Sequence[float]], otherwise: int) -> list[int]:
    """Return each column's first row with the highest number; ``otherwise`` for NaN columns."""
    chosen = []
    for column in zip(*rows, strict=True):
        best = otherwise
        if not math.isnan(column[0]):
            best = 0
            for row in range(len(column)):
                if column[row] > column[best]:
                    best = row
        chosen.append(best)
    return chosen


def bio_tags(num_words, entities):
    """Return each word's BIO tag, from the last entity (type, start, end) that covers it."""
    tags = []
    for word in range(num_words):
        covering = [(kind, start) for kind, start, end in entities if start <= word < end]
        kind, start = covering[-1] if covering else ("", -1)
        tags.append(("B-" if start == word else "I-") + kind if covering else "O")
    return tags
