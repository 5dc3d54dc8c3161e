"""Published layouts of encoders: how each is written in small, and which method trains it."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from raybio.core.config import override_all
from raybio.methods import METHODS
from raybio.training.settings import TrainingConfig
from tests.encoders.published import bioelectra, bluebert, cs_roberta, pickled_text
from tests.encoders.tiny_text import save_with_head
from tests.methods.relation_graphs.encoders.character_bert.tiny_characters import (
    published_tensors,
    write_hub,
)
from tests.methods.sppt.proteins.published_proteins import LAYOUTS
from tests.methods.sppt.proteins.test_tape_checkpoint import tape_tensors, write_tape

TRAINING = {
    "optim.peak_lr": "3e-3",
    "precision": "fp32",
    "schedule.max_steps": 6,
    "schedule.checkpoint_every_steps": 2,
    "schedule.evaluate_every_steps": 0,
    "schedule.log_every_steps": 1,
    "memory.max_tokens_per_micro_batch": 256,
}
PROTEINS = {
    "encoder.max_positions": 40,
    "input.max_length": 40,
    "plan.global_batch_rows": 11,
    "objective.lambda_spml": 0.5,
}
WITHOUT_MASKS = {"objective.lambda_spml": 1, "objective.masked_anchors": "false"}
TEXTS = {
    "encoder.max_length": 32,
    "plan.global_batch_rows": 11,
    "plan.window_steps": 4,
    "optim.num_warmup_steps": 0,
}
ARTICLES = {
    "encoder.max_length": 32,
    "plan.global_batch_rows": 11,
    "objective.lambda_spml": 0.5,
}
WORDS = {
    "encoder.num_frozen_layers": 1,
    "schedule.early_stopping_metric": "null",
    "plan.global_batch_rows": 6,
}


class Layout(NamedTuple):
    """A published layout.

    Attributes:
        write: writes a tiny checkpoint to a folder.
        method: a method that trains it.
        store: the fixture with a tiny store.
        settings: of the method.
    """

    write: Callable[[Path], object]
    method: str
    store: str
    settings: dict[str, object]

    def config(self, source: str, **changes: object) -> TrainingConfig:
        """Return settings that train the encoder at ``source`` for a few steps."""
        given = TRAINING | self.settings | changes | {"encoder.source": source}
        given |= {"encoder.num_layers": 2}  # for scratch alone
        return override_all(METHODS[self.method].config(), given)


def _proteins(write: Callable[[Path], object], **changes: object) -> Layout:
    return Layout(write, "sppt_protein", "tiny_store", PROTEINS | changes)


def _texts(write: Callable[[Path], object]) -> Layout:
    return Layout(write, "biostransformers", "tiny_articles", TEXTS)


def _character_bert(folder: Path) -> Path:
    """CharacterBERT of the hub, with positions for the sentences of the tiny store."""
    tensors = published_tensors("character_bert.")
    table = "character_bert.embeddings.position_embeddings.weight"
    tensors[table] = tensors[table].repeat(4, 1)
    return write_hub(folder, tensors, max_position_embeddings=len(tensors[table]))


PUBLISHED = {
    "tape": _proteins(lambda folder: write_tape(folder, tape_tensors())),
    "protbert": _proteins(LAYOUTS["protbert"]),
    "esm2": _proteins(LAYOUTS["esm2"]),
    "esmc": _proteins(LAYOUTS["esmc"]),
    "prott5": _proteins(LAYOUTS["prott5"], **WITHOUT_MASKS),
    "ankh": _proteins(LAYOUTS["ankh"], **WITHOUT_MASKS),
    "bluebert": _texts(bluebert),
    "bert": _texts(lambda folder: pickled_text(folder, "bert")),
    "electra": _texts(bioelectra),
    "roberta": Layout(cs_roberta, "sppt_mag", "tiny_citations", ARTICLES),
    "modernbert": _texts(lambda folder: save_with_head(folder, "modernbert")),
    "character_bert": Layout(
        _character_bert,
        "relation_graphs",
        "tiny_words",
        WORDS,
    ),
}
