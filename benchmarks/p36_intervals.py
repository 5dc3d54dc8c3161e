"""P36: 95 % intervals of the 14 measures of link retrieval at 1.45 M anchors in 1,840 groups, as many as Tree of life has.

Ours is the closed form; the peer resamples anchors within their groups 1,000 times, as small evaluations do. Before it is
timed, the closed form is compared with 20,000 resamples of 20,000 anchors, whose ends scatter by 0.5 % of the width.
"""

from dataclasses import fields
from statistics import median

import numpy as np
from _measure import SMALL, core_seconds_of, report

from raybio.methods.sppt import scores
from raybio.methods.sppt.link_retrieval import CUTOFFS, LinkRetrieval
from raybio.methods.sppt.scores import bootstrap_intervals

NUM_ANCHORS, NUM_GROUPS = (20_000, 25) if SMALL else (1_450_000, 1840)
NUM_CHECKED, NUM_RESAMPLES = (11_000, 200) if SMALL else (20_000, 20_000)
NUM_TIMED_RESAMPLES = 4
"""Time of resamples is proportional to their number; 1,000 would take minutes."""


def retrieval() -> LinkRetrieval:
    """Return a retrieval with many links of few anchors, and better scores in some groups."""
    rng = np.random.default_rng(0)
    group = np.sort(rng.integers(0, NUM_GROUPS, NUM_ANCHORS))
    quality = rng.beta(2, 8, NUM_GROUPS)[group]
    links = rng.zipf(2.2, NUM_ANCHORS).clip(max=500)
    hits = np.stack([np.minimum(rng.binomial(links, quality), k) for k in CUTOFFS], axis=1)
    return LinkRetrieval(
        anchor_A=np.arange(NUM_ANCHORS),
        group_A=group,
        num_links_A=links,
        lrap_A=quality * rng.random(NUM_ANCHORS) ** 2,
        ndcg_A=quality * rng.random(NUM_ANCHORS),
        reciprocal_rank_A=1 / rng.geometric(quality / 2),
        average_precision_A=links * rng.random(NUM_ANCHORS) * 0.1,
        hits_AK=hits.astype(float),
    )


def resampled(found: LinkRetrieval, num_resamples: int) -> dict[str, scores.Interval]:
    limit = scores.MAX_RESAMPLED_UNITS
    scores.MAX_RESAMPLED_UNITS = len(found.group_A)
    try:
        return bootstrap_intervals(found, np.random.default_rng(0), num_resamples=num_resamples)
    finally:
        scores.MAX_RESAMPLED_UNITS = limit


def differences(found: LinkRetrieval) -> dict[str, float]:
    """Return how far the ends are from those of resamples, in widths, by measure."""
    closed_form = bootstrap_intervals(found, np.random.default_rng(0))
    assert closed_form == bootstrap_intervals(found, np.random.default_rng(1)), "resampled"
    by_measure = {}
    for name, (_, low, high) in resampled(found, NUM_RESAMPLES).items():
        ends = closed_form[name]
        by_measure[name] = max(abs(ends.low - low), abs(ends.high - high)) / (high - low)
    return by_measure


def main() -> None:
    found = retrieval()
    start = int(np.searchsorted(found.group_A, found.group_A[NUM_CHECKED]))
    part = LinkRetrieval(*(getattr(found, field.name)[:start] for field in fields(found)))
    by_measure = differences(part)
    difference = max(by_measure.values())
    assert SMALL or difference < 0.02, by_measure
    bootstrap_intervals(found, np.random.default_rng(0))
    ours = [
        core_seconds_of(lambda: bootstrap_intervals(found, np.random.default_rng(0)))
        for _ in range(5)
    ]
    theirs = core_seconds_of(lambda: resampled(found, NUM_TIMED_RESAMPLES))
    theirs *= 1000 / NUM_TIMED_RESAMPLES
    assert SMALL or median(ours) <= 1, ours
    note = (
        f"{NUM_ANCHORS:,} anchors, {median(ours):.2f} s of processor time, theirs {theirs:.0f} s by "
        f"{NUM_TIMED_RESAMPLES} of them; ends differ from {NUM_RESAMPLES:,} resamples of {start:,} anchors by at most "
        f"{difference:.1%} of the width"
    )
    report("P36", "1,000 resamples", theirs / median(ours), theirs / max(ours), note)


if __name__ == "__main__":
    main()
