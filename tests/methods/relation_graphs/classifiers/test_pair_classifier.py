import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from raybio.methods.relation_graphs.annotations.word_pairs import WordPairs
from raybio.methods.relation_graphs.classifiers.pair_probe import fit_pair_classifier, pair_logits


def problem(dtype=torch.float64, seed: int = 0):
    """Return words far from 0 with different scales and a constant column, and labels of pairs."""
    generator = torch.Generator().manual_seed(seed)
    length = torch.randint(0, 9, (60,), generator=generator)
    indptr = torch.cat([length.new_zeros(1), length.cumsum(0)])
    row = torch.randn(int(indptr[-1]), 5, generator=generator, dtype=torch.float64)
    first, second = WordPairs(row, indptr).pairs()
    score = row[first, 0] - row[second, 1] + 0.5 * row[second, 2] - 1.5
    is_related = score + torch.randn(len(first), generator=generator, dtype=torch.float64) > 0
    row = row * torch.logspace(-2, 2, 5, dtype=torch.float64) + 5
    row[:, -1] = 3.0
    return WordPairs(row.to(dtype), indptr), is_related


def chains(words: WordPairs) -> torch.Tensor:
    return torch.cat([words.row_WD[word] for word in words.pairs()], dim=1)


@pytest.mark.parametrize("l2", [1.0, 0.01, 0.001])
@pytest.mark.parametrize("positive_weight", [1.0, 7.0])
def test_it_is_scikit_learns_logistic_regression_on_the_chains(l2, positive_weight):
    words, is_related = problem()
    chain = StandardScaler().fit_transform(chains(words))
    theirs = LogisticRegression(
        C=1 / (l2 * len(chain)),
        tol=1e-10,
        max_iter=10_000,
        class_weight={False: 1.0, True: positive_weight},
    )
    expected = theirs.fit(chain, is_related).decision_function(chain)
    fitted = fit_pair_classifier(words, is_related, l2=l2, positive_weight=positive_weight)
    assert np.allclose(pair_logits(words, *fitted), expected, atol=1e-3)
    single = WordPairs(words.row_WD.float(), words.indptr_S1)
    fitted = fit_pair_classifier(single, is_related, l2=l2, positive_weight=positive_weight)
    assert np.allclose(pair_logits(single, *fitted), expected, atol=1e-2)


def test_logits_are_products_with_the_chains():
    words, _ = problem()
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(10, generator=generator, dtype=torch.float64), torch.tensor(0.3)
    assert torch.allclose(pair_logits(words, weight, bias), chains(words) @ weight + bias)


def test_the_scale_and_place_of_columns_do_not_matter_and_constant_ones_get_no_weight():
    words, is_related = problem()
    moved = WordPairs(
        words.row_WD * torch.logspace(2, -2, 5, dtype=torch.float64) - 7, words.indptr_S1
    )
    fitted = [fit_pair_classifier(one, is_related, l2=0.01) for one in (words, moved)]
    logits = [pair_logits(one, *each) for one, each in zip((words, moved), fitted, strict=True)]
    assert torch.allclose(*logits, atol=1e-3)
    assert (fitted[0][0][[4, 9]] == 0).all()


def test_a_greater_weight_of_related_pairs_finds_more_of_them():
    words, is_related = problem()
    found = [
        (
            pair_logits(
                words, *fit_pair_classifier(words, is_related, l2=0.01, positive_weight=weight)
            )
            > 0
        ).sum()
        for weight in (0.2, 1.0, 5.0)
    ]
    assert found[0] < found[1] < found[2]


def test_wrong_arguments_are_refused():
    words, is_related = problem()
    with pytest.raises(ValueError, match="one a pair"):
        fit_pair_classifier(words, is_related[1:], l2=0.1)
    with pytest.raises(ValueError, match="l2 is 0"):
        fit_pair_classifier(words, is_related, l2=0.0)
    with pytest.raises(ValueError, match="positive_weight -1"):
        fit_pair_classifier(words, is_related, l2=0.1, positive_weight=-1.0)
    with pytest.raises(ValueError, match="words hold NaN"):
        fit_pair_classifier(
            WordPairs(words.row_WD * torch.nan, words.indptr_S1), is_related, l2=0.1
        )
    with pytest.raises(ValueError, match="two words wide"):
        pair_logits(words, torch.zeros(5), torch.zeros(()))
