import pytest
import torch

from raybio.methods.relation_graphs.classifiers.majority_vote import majority_vote
from tests import word_oracles


@pytest.mark.parametrize(("k", "num_classes"), [(1, 3), (5, 2), (7, 5), (4, 3)])
def test_majority_vote_equals_the_loop(k, num_classes):
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(0, num_classes, (200, k), generator=generator)
    assert majority_vote(label, num_classes).tolist() == word_oracles.majority_vote(
        label.tolist(), num_classes
    )


def test_the_nearest_neighbor_breaks_ties():
    label = torch.tensor([[2, 0, 0, 2], [1, 2, 2, 0], [2, 1, 0, 1]])
    assert majority_vote(label, 3).tolist() == [2, 2, 1]
    assert majority_vote(label[:0], 3).tolist() == []


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (torch.zeros(3, 0, dtype=torch.int64), "at least 1 each"),
        (torch.zeros(3, 2), "want torch.int64"),
        (torch.full((3, 2), 4), r"labels span \[4, 4\], want \[0, 3\)"),
    ],
)
def test_invalid_labels_are_refused(label, message):
    with pytest.raises(ValueError, match=message):
        majority_vote(label, 3)
