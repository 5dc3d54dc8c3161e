"""The words of training sentences that vote on new words, as an export holds them.

Shape letters: S sentences, W words of all of them, P related pairs, D embedding width.
"""

from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from raybio.core.errors import ConfigError
from raybio.core.records import export_record, write_record
from raybio.methods.relation_graphs.annotations.gold import (
    Annotations,
    EmbeddedSentences,
    Gold,
    Related,
)
from raybio.methods.relation_graphs.objective import RelationGraphHead

RECORD = "word_predictor.json"
TENSORS = "reference_words.safetensors"


class WordLabels(NamedTuple):
    """Names of a model's classes, and its numbers of neighbors.

    Attributes:
        entity_types: names of the types.
        relation_names: names of the relations, "NA" first.
        num_pair_neighbors: training pairs that vote on a pair.
        num_tag_neighbors: training words that vote on a word's tag.
    """

    entity_types: tuple[str, ...]
    relation_names: tuple[str, ...]
    num_pair_neighbors: int
    num_tag_neighbors: int

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the record of an export.

        Raises:
            ConfigError: if the record is damaged or of another version.
        """
        with export_record(folder / RECORD, "word predictor", "relation_graphs") as content:
            labels = cls(**content)
            return labels._replace(
                entity_types=tuple(map(str, labels.entity_types)),
                relation_names=tuple(map(str, labels.relation_names)),
                num_pair_neighbors=int(labels.num_pair_neighbors),
                num_tag_neighbors=int(labels.num_tag_neighbors),
            )


class ReferenceWords(NamedTuple):
    """Embedded words of sentences with their tags and related pairs.

    Attributes:
        word_WD: words before the tag head, which maps them when they are read.
        indptr_S1: CSR pointers to the words of each sentence.
        tag_W: BIO tags.
        pairs: related pairs of words.
        labels: what the model predicts.
    """

    word_WD: Tensor
    indptr_S1: np.ndarray
    tag_W: np.ndarray
    pairs: Related
    labels: WordLabels

    @property
    def description(self) -> str:
        """A few sentences for the model card."""
        labels = self.labels
        return (
            f"Entities ({', '.join(labels.entity_types)}) and relations "
            f"({', '.join(labels.relation_names[1:])}) of new sentences are those of the nearest "
            f"of {len(self.word_WD):,} training words: {labels.num_tag_neighbors} vote on a "
            f"word's tag, {labels.num_pair_neighbors} pairs on a pair."
        )

    def write(self, folder: Path) -> None:
        """Write the record and the tensors into an export."""
        arrays = {
            "indptr_S1": self.indptr_S1,
            "tag_W": self.tag_W,
            "first_P": self.pairs.first_P,
            "second_P": self.pairs.second_P,
            "label_P": self.pairs.label_P,
        }
        tensors = {
            name: torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
            for name, array in arrays.items()
        }
        tensors["word_WD"] = self.word_WD.detach().cpu().contiguous()
        save_file(tensors, folder / TENSORS)
        write_record(folder / RECORD, "word predictor", self.labels._asdict())


def read_reference(
    folder: Path, head: RelationGraphHead, device: torch.device
) -> EmbeddedSentences:
    """Return the embedded training sentences of an export.

    Args:
        folder: the export.
        head: the trained head, whose tag head maps words.
        device: device on which words are compared.

    Raises:
        ConfigError: if the file is missing or damaged.
    """
    try:
        tensors = load_file(folder / TENSORS)
        word_WD = tensors.pop("word_WD").to(device)
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        pairs = Related(arrays["first_P"], arrays["second_P"], arrays["label_P"])
        gold = Gold(arrays["indptr_S1"], arrays["tag_W"], pairs, no_annotations())
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{folder / TENSORS}: cannot be read ({error}); export the run again"
        ) from None
    with torch.no_grad():
        return EmbeddedSentences(word_WD, head.tag_space(word_WD), gold)


def no_annotations() -> Annotations:
    """Return annotations without entities and relations; predictions do not use any."""
    nothing = np.zeros(0, dtype=np.int64)
    return Annotations(*([nothing] * len(Annotations._fields)))
