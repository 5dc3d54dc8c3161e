"""The slow, obvious version of every pure function: loops over scalars, straight from the definitions."""

import math
from collections.abc import Iterable, Sequence

import numpy as np


def neighbors_of(edges: Iterable[tuple[int, int]], num_nodes: int) -> list[set[int]]:
    """Sets of neighbors, without self pairs."""
    neighbors: list[set[int]] = [set() for _ in range(num_nodes)]
    for u, v in edges:
        if u != v:
            neighbors[u].add(v)
            neighbors[v].add(u)
    return neighbors


def allowed_negatives(neighbors: list[set[int]], group: Sequence[int], node: int) -> set[int]:
    """The non-neighbors of a node in its group; if there is none, those in other groups."""
    free = {other for other in range(len(group)) if other != node and other not in neighbors[node]}
    inside = {other for other in free if group[other] == group[node]}
    return inside or free


def cosine(left: np.ndarray, right: np.ndarray) -> float:
    """Cosine of two vectors; 0 for a zero vector."""
    dot = sum(float(a) * float(b) for a, b in zip(left, right, strict=True))
    length = math.sqrt(sum(float(a) ** 2 for a in left)) * math.sqrt(
        sum(float(b) ** 2 for b in right)
    )
    return dot / length if length else 0.0


def distance(left: np.ndarray, right: np.ndarray) -> float:
    """Euclidean distance."""
    return math.sqrt(sum((float(a) - float(b)) ** 2 for a, b in zip(left, right, strict=True)))


def info_nce(
    anchor: np.ndarray,
    candidate: np.ndarray,
    positive: Sequence[int],
    temperature: float,
    ignore=None,
) -> float:
    """Mean of -log softmax at the positive."""
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
    """The mean, and the loss of each anchor, None if skipped (code of McDermott et al.)."""
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
    """The form that McDermott et al. print."""
    num, pull, push = len(embedding), 1.0, 1.0
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
    """The sum of two means, as McDermott et al. print it."""
    num = len(anchor)
    pull = sum(max(distance(anchor[i], positive[i]) - positive_margin, 0.0) for i in range(num))
    push = sum(max(negative_margin - distance(anchor[i], negative[i]), 0.0) for i in range(num))
    return pull / num + push / num


def retrieval_of_group(
    score: np.ndarray, linked: np.ndarray, ignore: np.ndarray | None = None
) -> dict[int, dict]:
    """Scores of each anchor of a group.

    They are lrap, ndcg, reciprocal_rank, num_links, precision_sum and hits by cut-off. ``score`` and ``linked`` are (n, n); the diagonal and ``ignore`` are no candidates.
    """
    num = len(score)
    candidates = [
        [j for j in range(num) if j != i and not (ignore is not None and ignore[i][j])]
        for i in range(num)
    ]
    pairs = [(float(score[i][j]), bool(linked[i][j])) for i in range(num) for j in candidates[i]]
    result = {}
    for i in range(num):
        links = [j for j in candidates[i] if linked[i][j]]
        if not links:
            continue
        precisions, reciprocal_ranks, ranks, pooled = [], [], [], []
        hits = dict.fromkeys((1, 5, 10, 25, 100), 0.0)
        for j in links:
            mine = score[i][j]
            at_least = [k for k in candidates[i] if score[i][k] >= mine]
            above = sum(1 for k in candidates[i] if score[i][k] > mine)
            tied = len(at_least) - above
            precisions.append(sum(1 for k in at_least if linked[i][k]) / len(at_least))
            reciprocal_ranks.append(1 / (above + (tied + 1) / 2))
            ranks.append(above + sum(1 for k in candidates[i] if score[i][k] == mine and k < j) + 1)
            for k in hits:
                hits[k] += sum(1 for rank in range(above + 1, above + tied + 1) if rank <= k) / tied
            reached = [is_link for value, is_link in pairs if value >= mine]
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
    """Candidates that score above, or as high with a smaller index, for each gold candidate of each query in turn."""
    ranks = []
    for query, mine in enumerate(gold):
        asked = range(score.shape[1])
        for g in mine:
            above = [c for c in asked if score[query][c] > score[query][g]]
            tied_before = [c for c in asked if score[query][c] == score[query][g] and c < g]
            ranks.append(len(above) + len(tied_before))
    return ranks


def mean_reciprocal_rank(score: np.ndarray, gold: Sequence[Sequence[int]]) -> float:
    """Mean over queries with gold of 1 / place of the first gold candidate by score, ties by index, from 1 on."""
    values = []
    for query, mine in enumerate(gold):
        order = sorted(range(score.shape[1]), key=lambda c, query=query: (-score[query][c], c))
        if mine:
            values.append(1 / (1 + min(order.index(g) for g in mine)))
    return sum(values) / len(values)


def r_precision(score: np.ndarray, gold: Sequence[Sequence[int]]) -> list[float | None]:
    """Of the first |gold| candidates by score, ties by index, the share that is gold; None without gold."""
    values: list[float | None] = []
    for query, mine in enumerate(gold):
        order = sorted(range(score.shape[1]), key=lambda c, query=query: (-score[query][c], c))
        values.append(len(set(order[: len(mine)]) & set(mine)) / len(mine) if mine else None)
    return values


def sign_flip_p(difference: Sequence[float]) -> float:
    """Share of all 2^n sign patterns whose sum is at least as far from 0 as the sum itself."""
    observed, reached = abs(sum(difference)), 0
    for pattern in range(2 ** len(difference)):
        flipped = sum(d if pattern >> i & 1 else -d for i, d in enumerate(difference))
        reached += abs(flipped) >= observed - 1e-12
    return reached / 2 ** len(difference)


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Every choice of items of ``first`` is tried."""
    best = 0
    for chosen in range(2 ** len(first)):
        wanted = [item for place, item in enumerate(first) if chosen >> place & 1]
        rest = iter(second)
        if all(item in rest for item in wanted):
            best = max(best, len(wanted))
    return best


def bm25(
    query: Sequence[str], documents: Sequence[Sequence[str]], k1: float, b: float
) -> list[float]:
    """Robertson and Zaragoza (2009), with the idf that never falls below 0, over lists of words."""
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
    """The aggregated metrics over groups, given as square matrices."""
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
    """The k nearest by Euclidean distance, those whose squares are equal in float32 by index."""
    found = []
    for one in query.astype(np.float64):
        squares = [np.float32(((one - other) ** 2).sum()) for other in candidate.astype(np.float64)]
        found.append(
            sorted(range(len(candidate)), key=lambda c, squares=squares: (squares[c], c))[:k]
        )
    return found


def agreement(
    asked: Sequence[int],
    first: Sequence[Sequence[int]],
    second: Sequence[Sequence[int]],
    near_head: Sequence[Sequence[int]],
) -> float:
    """Names far from its head that both wordings of a query share above those with any other's; -1 is no name."""

    def far(names: Sequence[int], query: int) -> set[int]:
        return {name for name in names if name >= 0 and name not in near_head[query]}

    def share(one: int, other: int) -> float:
        return len(far(first[one], one) & far(second[other], other)) / len(first[one])

    own = sum(share(q, q) for q in asked) / len(asked)
    others = [share(q, p) for q in asked for p in range(len(second)) if p != q]
    chance = sum(others) / len(others)
    return (own - chance) / (1 - chance)


def first_of_the_highest_means(rows: Sequence[Sequence[float]]) -> int:
    """The first row with the highest mean over the columns that are numbers."""
    best, best_mean = 0, -math.inf
    for place, row in enumerate(rows):
        numbers = [value for value in row if not math.isnan(value)]
        if sum(numbers) / len(numbers) > best_mean:
            best, best_mean = place, sum(numbers) / len(numbers)
    return best


def first_of_the_highest(rows: Sequence[Sequence[float]], otherwise: int) -> list[int]:
    """For each column the first row with its highest number; ``otherwise`` for a column without numbers."""
    chosen = []
    for column in zip(*rows, strict=True):
        place = otherwise
        if not math.isnan(column[0]):
            place = 0
            for other in range(len(column)):
                place = other if column[other] > column[place] else place
        chosen.append(place)
    return chosen


def bio_tags(num_words, entities):
    """Tag of each word, asked of each word: the last of the entities (type, start, end) that covers it decides."""
    tags = []
    for word in range(num_words):
        covering = [(kind, start) for kind, start, end in entities if start <= word < end]
        kind, start = covering[-1] if covering else ("", -1)
        tags.append(("B-" if start == word else "I-") + kind if covering else "O")
    return tags
