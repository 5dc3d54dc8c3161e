"""Models of one fold, judged together on its test sentences: relations by one of them, entities by another."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from raybio.core.final_report import nan_for_null
from raybio.core.records import read_recomputable, write_record
from raybio.methods.relation_graphs.encoder import SETTINGS
from raybio.runtime.cluster.resources import TrialResources
from raybio.runtime.run.folder import RunFolder
from raybio.store.store import sha256_of

UNTUNED = "untuned"


TAGS_OF = {"cldr": "clner", "clgs": "clner", "clner": "clner", "joint": "joint"}
"""Model of relations -> the one whose space tells the entities of its row."""


class Found(NamedTuple):
    """What a judgement came to.

    Attributes:
        scores: by measure, 0 to 1.
        rule: how neighbours voted: ``pair_neighbours``, ``tag_neighbours``, ``probe_positive_weight``.
    """

    scores: dict[str, float]
    rule: dict[str, float]


@dataclass(frozen=True)
class Judgement:
    """Which models are judged together, and where that is kept.

    Attributes:
        store: path of the prepared sentences.
        row: of the table.
        fold: from 1.
        relations: export of the model whose space tells the relations.
        entities: export of the one that tells the entities.
        path: of the scores.
        has_graphs: whether the first one tells true graphs from false ones.
        is_untuned: whether both are judged as they were before training.
    """

    store: Path
    row: str
    fold: int
    relations: Path
    entities: Path
    path: Path
    has_graphs: bool
    is_untuned: bool = False

    def __str__(self) -> str:
        """What is told of it."""
        return f"judged {self.row}, fold {self.fold}"

    @property
    def is_done(self) -> bool:
        """Whether it is kept."""
        return self.known() is not None

    def known(self) -> Found | None:
        """What it came to; None if it has not, or the models have been trained again since."""
        kept = read_recomputable(self.path, "fold scores") or {}
        return (
            Found(nan_for_null(kept["scores"]), kept["rule"])
            if kept.get("models") == self._digests()
            else None
        )

    def keep(self, found: Found) -> None:
        """Write it."""
        self.path.parent.mkdir(exist_ok=True)
        write_record(self.path, "fold scores", {"models": self._digests(), **found._asdict()})

    def work(self, place: TrialResources) -> Found:
        """Judge.

        Raises:
            RaybioError: as ``judge_together``.
        """
        # Only now: these import torch and transformers, which takes seconds.
        from raybio.methods.relation_graphs.evaluate import (
            graph_accuracy_of_sentences,
            judge_together,
        )

        device = "cuda" if place.gpus_per_worker else "cpu"
        judged = judge_together(
            self.relations, self.entities, self.store, is_untrained=self.is_untuned, device=device
        )
        scores = {name: interval["value"] for name, interval in judged.intervals().items()}
        if self.has_graphs:
            scores["graph_accuracy"] = float(
                graph_accuracy_of_sentences(self.relations, self.store, device).mean()
            )
        return Found(scores, judged.rule._asdict())

    def _digests(self) -> list[str]:
        return [_digest(self.relations), _digest(self.entities)]


def judgements(
    folder: RunFolder,
    store: Path,
    exports: Mapping[tuple[str, int], Path],
    models: Sequence[str],
    *,
    after: str = "",
    is_untuned_too: bool = True,
) -> list[Judgement]:
    """Every row on every fold: each model's relations with the entities of the one that knows tags for it.

    Args:
        folder: of the sweep.
        store: path of the prepared sentences.
        exports: (model, fold) -> its export.
        models: in the order of the rows.
        after: what rows are called behind their models.
        is_untuned_too: whether there is a row of the encoder before training.
    """
    related = [model for model in models if model != "clner"] or ["clner"]
    rows = {_row_name(model) + after: model for model in related}
    if is_untuned_too:
        rows = {UNTUNED: related[0]} | rows
    return [
        Judgement(
            store,
            row,
            fold,
            exports[model, fold],
            exports[TAGS_OF[model], fold],
            folder.path
            / "folds"
            / f"{row.replace(' + ', '-').replace(', ', '-').replace(' ', '-')}-{fold}.json",
            has_graphs=row != UNTUNED and model != "clner",
            is_untuned=row == UNTUNED,
        )
        for row, model in rows.items()
        for fold in sorted({fold for _, fold in exports})
    ]


def _row_name(model: str) -> str:
    return model if TAGS_OF[model] == model else f"{model} + {TAGS_OF[model]}"


def _digest(export: Path) -> str:
    """Of the weights, and of the settings that decide how they are judged."""
    parts = [*sorted(export.glob("*.safetensors")), export / SETTINGS]
    return hashlib.sha256("".join(sha256_of(path) for path in parts).encode()).hexdigest()
