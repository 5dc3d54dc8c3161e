"""Oracles of relation extraction: loops over scalars, from the definitions (Zhou et al., 2023)."""

import math
from collections.abc import Sequence

from tests.oracles import cosine


def multi_center_logits(
    pairs,
    labels,
    proxies,
    bias,
    weight_temperature,
    logit_temperature,
    others,
    other_labels,
    offset,
):
    """Return MCCL's logits; -inf for a class without members. Proxy i belongs to class i mod R."""
    logits = []
    for i in range(len(pairs)):
        row = []
        for r in range(len(bias)):
            members = [
                others[j] for j in range(len(others)) if j != offset + i and other_labels[j][r]
            ]
            members += [
                proxies[p]
                for p in range(0 if proxies is None else len(proxies))
                if p % len(bias) == r
            ]
            score = [cosine(pairs[i], member) for member in members]
            if not score:
                row.append(-math.inf)
                continue
            weight = [math.exp((s - max(score)) / weight_temperature) for s in score]
            soft_maximum = sum(w * s for w, s in zip(weight, score, strict=True)) / sum(weight)
            row.append((soft_maximum + float(bias[r])) / logit_temperature)
        logits.append(row)
    return logits


def adaptive_threshold(logits, labels, na_index: int) -> list[float]:
    """Return L1 + L2 of each pair over the existing classes (Zhou et al., 2021)."""
    losses = []
    for logit, label in zip(logits, labels, strict=True):
        there = [r for r in range(len(logit)) if logit[r] > -math.inf]
        positives = [r for r in there if r != na_index and label[r]]
        negatives = [r for r in there if r != na_index and not label[r]]
        na = [na_index] if na_index in there else []
        loss = 0.0
        for r in positives:
            loss -= math.log(math.exp(logit[r]) / sum(math.exp(logit[q]) for q in positives + na))
        for r in na:
            loss -= math.log(math.exp(logit[r]) / sum(math.exp(logit[q]) for q in negatives + na))
        losses.append(loss)
    return losses


def classwise_knn(queries, reference, labels, k: int) -> list[list[float]]:
    """Return the mean cosine of the nearest min(k, members) of each class; -inf without members."""
    means = []
    for query in queries:
        row = []
        for r in range(len(labels[0]) if len(labels) else 0):
            score = sorted(
                (cosine(query, reference[j]) for j in range(len(reference)) if labels[j][r]),
                reverse=True,
            )[:k]
            row.append(sum(score) / len(score) if score else -math.inf)
        means.append(row)
    return means


def class_centroids(reference, labels) -> list[list[float]]:
    """Mean of the rows of each class at length 1; zero for a class without rows."""
    centroids = []
    for r in range(len(labels[0])):
        rows = [row for row, label in zip(reference, labels, strict=True) if label[r]]
        lengths = [math.sqrt(sum(float(x) ** 2 for x in row)) for row in rows]
        centroids.append(
            [
                sum(float(row[d]) / length for row, length in zip(rows, lengths, strict=True))
                / max(len(rows), 1)
                for d in range(len(reference[0]))
            ]
        )
    return centroids


def self_contrast(pairs, twins, names, temperature: float, *, excludes_positives: bool) -> float:
    """Return L_self: pairs with a positive, their twin against the twins of other pairs."""
    terms = []
    for i in range(len(pairs)):
        if not any(j != i and names[j] == names[i] for j in range(len(pairs))):
            continue
        others = [
            k
            for k in range(len(pairs))
            if k != i and not (excludes_positives and names[k] == names[i])
        ]
        up = math.exp(cosine(pairs[i], twins[i]) / temperature)
        terms.append(
            -math.log(
                up / (up + sum(math.exp(cosine(pairs[i], twins[k]) / temperature) for k in others))
            )
        )
    return sum(terms) / len(terms)


def contrast(
    pairs, is_positive, is_negative, temperature: float, *, by_anchor: bool
) -> tuple[float, int]:
    """Return sum and number of the terms of L_rel, or of SupCon by anchor.

    Positives and negatives are predicates of two rows.
    """
    total, number = 0.0, 0
    rows = range(len(pairs))
    for i in rows:
        positives = [j for j in rows if j != i and is_positive(i, j)]
        negatives = [k for k in rows if k != i and is_negative(i, k)]
        terms = []
        for j in positives:
            up = cosine(pairs[i], pairs[j]) / temperature
            down = [cosine(pairs[i], pairs[k]) / temperature for k in negatives]
            top = max([up, *down])
            terms.append(top + math.log(sum(math.exp(s - top) for s in [up, *down])) - up)
        if by_anchor and terms:
            terms = [sum(terms) / len(terms)]
        total += sum(terms)
        number += len(terms)
    return total, number


def pair_equality(pairs, is_positive, is_negative) -> tuple[tuple[float, int], tuple[float, int]]:
    """Return sums and numbers of -log sigmoid(+-z_i . z_j) of positives and negatives."""
    sums, numbers = [0.0, 0.0], [0, 0]
    for i in range(len(pairs)):
        for j in range(len(pairs)):
            for side, (is_related, sign) in enumerate(((is_positive, 1.0), (is_negative, -1.0))):
                if i != j and is_related(i, j):
                    product = sum(
                        float(a) * float(b) for a, b in zip(pairs[i], pairs[j], strict=True)
                    )
                    sums[side] += math.log(1 + math.exp(-sign * product))
                    numbers[side] += 1
    return (sums[0], numbers[0]), (sums[1], numbers[1])


def multi_center_contrast(
    pairs, class_of, is_positive, is_negative, weight_temperature, logit_temperature
):
    """Return sum and number of the cross entropies of MCCL over entity pairs (Table 5)."""
    total, number = 0.0, 0
    rows = range(len(pairs))
    for i in rows:
        if not any(j != i and is_positive(i, j) for j in rows):
            continue
        member = {j for j in rows if j != i and (is_positive(i, j) or is_negative(i, j))}
        logit = {}
        for name in {class_of(j) for j in member}:
            score = [cosine(pairs[i], pairs[j]) for j in member if class_of(j) == name]
            weight = [math.exp((s - max(score)) / weight_temperature) for s in score]
            soft_maximum = sum(w * s for w, s in zip(weight, score, strict=True)) / sum(weight)
            logit[name] = soft_maximum / logit_temperature
        total += math.log(sum(math.exp(one) for one in logit.values())) - logit[class_of(i)]
        number += 1
    return total, number


def docred_scores(
    predicted: Sequence[tuple], gold: Sequence[tuple], in_train: set[tuple]
) -> dict[str, float]:
    """Return the scores of facts (document, head, tail, relation) as ATLOP's code does."""
    truth, submitted = set(gold), sorted(set(predicted))
    correct = correct_in_train = 0
    for fact in submitted:
        if fact in truth:
            correct += 1
            correct_in_train += fact in in_train
    precision, recall = (
        correct / len(submitted) if submitted else 0.0,
        correct / len(truth) if truth else 0.0,
    )
    ignoring = (correct - correct_in_train) / (len(submitted) - correct_in_train + 1e-5)

    def harmonic(p: float, r: float) -> float:
        return 2 * p * r / (p + r) if p + r else 0.0

    return {
        "precision": precision,
        "recall": recall,
        "f1": harmonic(precision, recall),
        "ign_f1": harmonic(ignoring, recall),
    }
