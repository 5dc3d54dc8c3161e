from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from raybio.methods.mtb_mccl.mccl.adaptive_threshold import adaptive_threshold
from raybio.ops import linear_probe as linear
from raybio.ops.linear_probe import fit_linear


def cross_entropy(logits, label):
    return F.cross_entropy(logits, label.int().argmax(1), reduction="none")


THRESHOLD = partial(adaptive_threshold, na_index=0)


def problem(num=120, width=6, classes=4, *, several=False, seed=0, dtype=torch.float64):
    """Rows far from 0 with different scales, constant columns, and labels that depend on them."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.randn(num, width, generator=generator, dtype=torch.float64)
    score = row[:, :classes] + torch.randn(num, classes, generator=generator, dtype=torch.float64)
    label = score > 0.5 if several else F.one_hot(score.argmax(1), classes).bool()
    row = row * torch.logspace(-2, 2, width, dtype=torch.float64) + 5
    row[:, -1] = 3.0
    return row.to(dtype), label


@pytest.mark.parametrize("l2", [1.0, 0.01, 0.001])
@pytest.mark.parametrize("rows_at_once", [1 << 16, 17])
def test_with_cross_entropy_it_equals_logistic_regression_of_scikit_learn(
    monkeypatch, l2, rows_at_once
):
    monkeypatch.setattr(linear, "_ROWS_AT_ONCE", rows_at_once)
    row, label = problem()
    weight, bias = fit_linear(row, label, cross_entropy, l2=l2)
    theirs = LogisticRegression(C=1 / (l2 * len(row)), tol=1e-8, max_iter=10_000)
    standard = StandardScaler().fit_transform(row)
    expected = theirs.fit(standard, label.int().argmax(1)).predict_proba(standard)
    assert np.allclose(F.softmax(row @ weight.T + bias, dim=1), expected, atol=1e-4)
    single = fit_linear(row.float(), label, cross_entropy, l2=l2)
    result = F.softmax(row.float() @ single.weight_RD.T + single.bias_R, dim=1)
    assert np.allclose(result, expected, atol=2e-3)


@pytest.mark.parametrize(("several", "loss"), [(False, cross_entropy), (True, THRESHOLD)])
def test_no_step_in_any_direction_lowers_the_loss(several, loss):
    row, label = problem(several=several)
    fitted = fit_linear(row, label, loss, l2=0.01)
    scale = torch.where(row.std(0) > 0, row.std(0, correction=0), 0.0)

    def total(weight, bias):
        return loss(row @ weight.T + bias, label).mean() + 0.005 * (weight * scale).square().sum()

    weight, bias = (part.clone().requires_grad_() for part in fitted)
    total(weight, bias).backward()
    assert bias.grad.abs().max() < 1e-5
    assert (weight.grad - bias.grad[:, None] * row.mean(0)).abs().max() < 1e-4 * scale.max()
    assert (fitted.weight_RD[:, -1] == 0).all()


@pytest.mark.parametrize("several", [False, True])
def test_the_scale_and_offset_of_columns_do_not_matter(several):
    row, label = problem(several=several)
    loss = THRESHOLD if several else cross_entropy
    logits = [
        one @ fitted.weight_RD.T + fitted.bias_R
        for one in (row, row * torch.logspace(2, -2, 6, dtype=torch.float64) - 7)
        for fitted in [fit_linear(one, label, loss, l2=0.01)]
    ]
    assert torch.allclose(*logits, atol=1e-4)


def test_separable_classes_are_separated():
    row, _ = problem(60, 3, 3)
    label = F.one_hot((row[:, 0] > row[:, 0].median()).long() + 1, 3).bool()
    weight, bias = fit_linear(row, label, cross_entropy, l2=1e-4)
    assert torch.equal((row @ weight.T + bias).argmax(1), label.int().argmax(1))
    assert torch.isfinite(weight).all()


def test_it_fits_inside_no_grad():
    row, label = problem()
    expected = fit_linear(row, label, cross_entropy, l2=0.1)
    with torch.no_grad():
        result = fit_linear(row, label, cross_entropy, l2=0.1)
    assert all(torch.equal(one, other) for one, other in zip(result, expected, strict=True))
    assert not result.weight_RD.requires_grad


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"l2": 0.0}, "l2 is 0.0, want a number > 0"),
        ({"label_NR": torch.zeros(3, 4, dtype=torch.bool)}, "120 rows and labels of 3"),
        ({"row_ND": torch.full((120, 6), torch.nan)}, "120 of 120 embeddings hold NaN"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    row, label = problem()
    with pytest.raises(ValueError, match=message):
        fit_linear(
            **{"row_ND": row, "label_NR": label, "row_loss": cross_entropy, "l2": 0.1} | change
        )
