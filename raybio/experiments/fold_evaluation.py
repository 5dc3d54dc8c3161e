"""Two models of a fold, evaluated together on its test sentences: for relations and tags."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from raybio.core.digest import cached_file_digest
from raybio.core.errors import StoreError
from raybio.core.final_report import nan_for_null
from raybio.core.location import BucketPath, Location
from raybio.core.records import read_recomputable, write_record
from raybio.methods.relation_graphs.export import SETTINGS
from raybio.runtime.cluster.resources import TrialResources
from raybio.runtime.run.encoder_source import pin_on_worker
from raybio.runtime.run.folder import RunFolder
from raybio.store.remote_folder import fetch_folder
from raybio.store.store import pinned

TAGGER_OF = {"cldr": "clner", "clgs": "clner", "clner": "clner", "joint": "joint"}
"""Model of the relations of a row -> model of its entities."""

ModelOfFold = tuple[str, int, int]
"""Model, fold and seed of a training."""


class FoldScores(NamedTuple):
    """The result of an evaluation.

    Attributes:
        scores: by measure, 0 to 1, with the settings that validation sentences choose.
        rule: these settings: ``num_pair_neighbors``, ``num_tag_neighbors``,
            ``probe_positive_weight``.
        fixed_scores: with the settings of the runs; None if these have several numbers of
            neighbors, or were trained on validation sentences.
    """

    scores: dict[str, float]
    rule: dict[str, float]
    fixed_scores: dict[str, float] | None


@dataclass(frozen=True)
class FoldEvaluation:
    """Two models that are evaluated together: a ``Task`` that keeps its scores in a file.

    Attributes:
        sweep: folder of the sweep, as the driver sees it.
        bucket: folder of the sweep in a bucket, from which machines fetch the exports; None: they
            see ``sweep``.
        encoder: what the sweep recorded of the encoder's weights, whose commit is loaded.
        store: path of the prepared sentences.
        data_digest: digest of this store, as the sweep recorded it.
        row: row of the table.
        fold: fold, from 1.
        relations: export of the model that predicts the relations.
        entities: export of the model that predicts the entities.
        path: file of the scores.
        has_graphs: whether the first model is also evaluated on true and false graphs.
    """

    sweep: RunFolder
    bucket: BucketPath | None
    encoder: dict[str, str] | None
    store: Location
    data_digest: str
    row: str
    fold: int
    relations: Path
    entities: Path
    path: Path
    has_graphs: bool

    def __str__(self) -> str:
        """Return the line that is printed when it is done."""
        return f"evaluated {self.row}, fold {self.fold}"

    @property
    def is_done(self) -> bool:
        """Whether the scores are kept."""
        return self.known() is not None

    def known(self) -> FoldScores | None:
        """Return the kept scores; None if there are none, or a model has changed since."""
        kept = read_recomputable(self.path, "fold scores")
        if kept is None or "fixed_scores" not in kept or kept.get("models") != self._digests():
            return None
        fixed_scores = kept["fixed_scores"]
        if fixed_scores is not None:
            fixed_scores = nan_for_null(fixed_scores)
        return FoldScores(nan_for_null(kept["scores"]), kept["rule"], fixed_scores)

    def keep(self, result: FoldScores) -> None:
        """Write the scores."""
        self.path.parent.mkdir(exist_ok=True)
        content = {"models": self._digests(), **result._asdict()}
        write_record(self.path, "fold scores", content)

    def work(self, reserved: TrialResources) -> FoldScores:
        """Evaluate.

        Raises:
            RaybioError: as the evaluation of the method.
        """
        from raybio.methods.relation_graphs.evaluation.evaluate_export import (
            evaluate_exports_twice,
            validate_graphs_of_export,
        )

        pin_on_worker(self.encoder)
        device = "cuda" if reserved.gpus_per_worker else "cpu"
        relations = self._seen_here(self.relations)
        entities = self._seen_here(self.entities)
        with pinned(self.store, self.data_digest):
            chosen, fixed = evaluate_exports_twice(relations, entities, self.store, device)
            scores = dict(chosen.values)
            if self.has_graphs:
                accuracy_S = validate_graphs_of_export(relations, self.store, device).accuracy_S
                # A fold may have no test sentence with graphs; its other scores still count.
                if len(accuracy_S):
                    scores["graph_accuracy"] = float(accuracy_S.mean())
        fixed_scores = None if fixed is None else fixed.values
        return FoldScores(scores, chosen.settings._asdict(), fixed_scores)

    def _seen_here(self, export: Path) -> Path:
        """Return the path of an export on the task's machine."""
        if self.bucket is None:
            return export
        return fetch_folder(self.bucket / export.relative_to(self.sweep.path).as_posix())

    def _digests(self) -> list[str]:
        try:
            return [_digest(self.relations), _digest(self.entities)]
        except OSError as error:
            raise StoreError(f"{error.filename}: cannot be read ({error.strerror}).") from None


def fold_evaluations(
    folder: RunFolder,
    bucket: BucketPath | None,
    store: Location,
    exports: Mapping[ModelOfFold, Path],
    models: Sequence[str],
    *,
    suffix: str = "",
) -> list[FoldEvaluation]:
    """Return every row on every fold: a model's relations with the entities of its tagger.

    CLNER has a row of its own unless it is the tagger of another model's row. Each seed's relations
    are evaluated with the entities of the same seed.

    Args:
        folder: folder of the sweep.
        bucket: its folder in a bucket; None: it is in a local folder.
        store: path of the prepared sentences.
        exports: (model, fold, seed) -> its export.
        models: models in the order of the rows.
        suffix: text behind the model in the name of its row.
    """
    taggers = {TAGGER_OF[model] for model in models if model != "clner"}
    related = [model for model in models if model != "clner" or "clner" not in taggers]
    model_by_row = {_row_name(model) + suffix: model for model in related}
    draws = sorted({(fold, seed) for _, fold, seed in exports})
    has_seeds = len({seed for _, seed in draws}) > 1
    evaluations = []
    for row, model in model_by_row.items():
        file_name = row.replace(" + ", "-").replace(", ", "-").replace(" ", "-")
        for fold, seed in draws:
            number = f"{fold}-{seed}" if has_seeds else f"{fold}"
            evaluation = FoldEvaluation(
                sweep=folder,
                bucket=bucket,
                encoder=folder.encoder,
                store=store,
                data_digest=folder.data_digest,
                row=row,
                fold=fold,
                relations=exports[model, fold, seed],
                entities=exports[TAGGER_OF[model], fold, seed],
                path=folder.path / "folds" / f"{file_name}-{number}.json",
                has_graphs=model != "clner",
            )
            evaluations.append(evaluation)
    return evaluations


def _row_name(model: str) -> str:
    tagger = TAGGER_OF[model]
    return model if tagger == model else f"{model} + {tagger}"


def _digest(export: Path) -> str:
    """Return a digest of the weights and of the settings of the evaluation."""
    parts = [*sorted(export.glob("*.safetensors")), export / SETTINGS]
    return hashlib.sha256("".join(cached_file_digest(path) for path in parts).encode()).hexdigest()
