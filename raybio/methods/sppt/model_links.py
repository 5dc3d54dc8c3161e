"""Link retrieval of any encoders on a store of linked rows, by command.

The first model is evaluated as in a run's final table. If it is the export of a run over this
store, the run's own settings are used, and the figures are those of its table. Other models are
more rows, on the same nodes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from raybio.core.config import recorded_config
from raybio.core.distance import Distance
from raybio.core.errors import ConfigError, StoreError
from raybio.core.files import RUN
from raybio.core.final_report import FinalReport
from raybio.core.interfaces import Encoder
from raybio.core.location import Location
from raybio.core.records import read_record
from raybio.encoders.text import TextEncoder
from raybio.methods.sppt.articles import system as articles
from raybio.methods.sppt.articles.config import Config as ArticleConfig
from raybio.methods.sppt.articles.method import METHOD as ARTICLES
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.graph_store import open_graph
from raybio.methods.sppt.proteins import system as proteins
from raybio.methods.sppt.proteins.config import Config as ProteinConfig
from raybio.methods.sppt.proteins.encoder import ProteinEncoder
from raybio.methods.sppt.proteins.method import METHOD as PROTEINS
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.methods.sppt.system import KeptEmbeddings, LinkEvaluator
from raybio.methods.sppt.text_encoder import text_rows
from raybio.store.manifest import PREPARED_BY, kind_and_command
from raybio.store.store import open_store
from raybio.training.collective import SingleProcess
from raybio.training.embedding_model import EmbeddingModel
from raybio.training.precision import (
    Precision,
    default_device,
    embedding_precision,
    resolve_precision,
)
from raybio.training.settings import EmbeddingPrecision

_ROWS_AT_ONCE = 4096

LinkedStore = ProteinStore | LinkedTextStore
Config = ProteinConfig | ArticleConfig


@dataclass(frozen=True, kw_only=True)
class LinkEvaluationOptions:
    """Options that replace settings of the run, or defaults of its method; None: not replaced.

    Attributes:
        nodes: nodes drawn from each group, to which their neighbors are added; 0: whole groups.
        metric: distance by which candidates are ranked, "euclidean" or "cosine".
        seed: of random vectors and intervals.
        precision: of the encoders, "fp32", "tf32" or "bf16".
        rivals: whether rankings that need no encoder are scored.
        gnn: whether a graph network over frozen embeddings is trained for a row; see ``gnn_rival``.
        as_in_its_run: whether the settings of the first model's run are used, and its initial
            encoder is a row. Otherwise each model is evaluated by the defaults of the method, in
            fp32, so that results of several calls are comparable.
    """

    nodes: int | None = None
    metric: Distance | None = None
    seed: int | None = None
    precision: EmbeddingPrecision | None = None
    rivals: bool | None = None
    gnn: bool | None = None
    as_in_its_run: bool = True

    def applied_to(self, config: Config) -> Config:
        """Return the settings with these options applied."""
        evaluation: dict[str, Any] = {}
        if self.nodes is not None:
            evaluation["num_nodes_per_group_at_the_end"] = self.nodes
        if self.metric is not None:
            evaluation["metric"] = self.metric
        if self.rivals is not None:
            evaluation["rivals"] = self.rivals
        if self.gnn is not None:
            evaluation["gnn"] = self.gnn
        changes: dict[str, Any] = {"evaluation": config.evaluation.model_copy(update=evaluation)}
        if self.seed is not None:
            changes["seed"] = self.seed
        return config.model_copy(update=changes)


def evaluate_model_links(
    models: Mapping[str, EmbeddingModel],
    store_path: Location,
    options: LinkEvaluationOptions = LinkEvaluationOptions(),
    *,
    report: Callable[[str], None] = lambda _: None,
    kept: KeptEmbeddings | None = None,
) -> FinalReport:
    """Return the evaluation of the first model, with the other models as more rows.

    Args:
        models: at least one, by the name of its row.
        store_path: store of proteins or of articles.
        options: options that replace settings.
        report: called with progress messages.
        kept: keeps embeddings of the first model, see ``LinkEvaluator``.

    Raises:
        ConfigError: for a model that cannot be loaded or reads other inputs, or that has the name
            of another row; for a precision that this machine lacks.
        RecordError: if the ``run.json`` of a model's run is damaged.
        StoreError: for a store that cannot be read, or has no links.
    """
    store = _open(store_path)
    for name, model in models.items():
        if model.reads != store.inputs_are:
            raise ConfigError(
                f"--model {name}: reads {model.reads}, and {store_path} is a store of "
                f"{store.inputs_are}; want a model of {store.inputs_are}"
            )
    first_name = next(iter(models))
    run = _run_of(models[first_name], store, options.as_in_its_run)
    device = default_device()
    precision = Precision(run.precision, device)
    if options.precision is not None:
        precision = resolve_precision(options.precision, device)
    with embedding_precision(precision):
        return _evaluate(models, store, options.applied_to(run.config), run, device, report, kept)


def _evaluate(
    models: Mapping[str, EmbeddingModel],
    store: LinkedStore,
    config: Config,
    run: "_Run",
    device: str,
    report: Callable[[str], None],
    kept: KeptEmbeddings | None,
) -> FinalReport:
    first_name, *other_names = models
    report(f"evaluating {first_name}")
    encoder = models[first_name].load().to(device)
    evaluator = _evaluator(models[first_name], encoder, store, config, run.initial)
    if run.initial is None:
        evaluator = replace(evaluator, kept=kept)
    final = evaluator.final_report(encoder, SingleProcess())
    for name in models:
        if name in final.scores:
            raise ConfigError(f"--model {name}: is the name of another row; give its path")
    scores = dict(final.scores)
    spread = dict(final.spread)
    unit_scores = dict(final.unit_scores)
    for name in other_names:
        report(f"evaluating {name}")
        encoder = models[name].load().to(device)
        evaluator = _evaluator(models[name], encoder, store, config, None)
        model_scores = evaluator.score(encoder, SingleProcess(), name)
        scores[name] = model_scores.scores
        unit_scores[name] = model_scores.unit_scores
        if model_scores.spread is not None:
            spread[name] = model_scores.spread
    remarks = [*final.remarks, *run.remarks]
    for name, model in models.items():
        blocks = -(-store.num_rows // _ROWS_AT_ONCE)
        cut = model.input_lengths(_contents(store), blocks).remark
        if cut:
            remarks.append(f"{name}: {cut}")
    return replace(final, scores=scores, spread=spread, unit_scores=unit_scores, remarks=remarks)


def _open(path: Location) -> LinkedStore:
    kind = open_graph(path).manifest["kind"]
    if kind == ProteinStore.kind:
        return open_store(path, ProteinStore)
    if kind == LinkedTextStore.kind:
        return open_store(path, LinkedTextStore)
    raise StoreError(
        f"{path}: is a store of {kind_and_command(kind)}; want proteins or articles with their "
        f"links ({PREPARED_BY[ProteinStore.kind]} or {PREPARED_BY[LinkedTextStore.kind]})"
    )


class _Run(NamedTuple):
    """Facts about the training of a model.

    Attributes:
        config: its settings; the method's defaults if unknown, or of a run over other data.
        precision: of its evaluations, "fp32" if unknown.
        initial: its encoder before training; None: unknown.
        remarks: why it is unknown, where it should be known.
    """

    config: Config
    precision: str
    initial: Encoder | None
    remarks: list[str]


def _run_of(model: EmbeddingModel, store: LinkedStore, as_in_its_run: bool) -> _Run:
    """Return the run in ``run.json`` next to an export, if it is wanted and over this store."""
    is_protein = isinstance(store, ProteinStore)
    config_type: type[Config] = ProteinConfig if is_protein else ArticleConfig
    path = Path(model.folder).absolute().parent / RUN
    record = read_record(path, "run") or {}
    method = PROTEINS if is_protein else ARTICLES
    is_over_store = str(record.get("data_digest", "")).startswith(store.digest)
    if not as_in_its_run or not method.has_name(record.get("method")) or not is_over_store:
        return _Run(config_type(), "fp32", None, [])
    precision = str(record.get("precision", "fp32"))
    config = recorded_config(config_type, record["config"], path)
    initial: Encoder
    try:
        if isinstance(store, ProteinStore):
            assert isinstance(config, ProteinConfig)
            initial = proteins.initial_encoder(config)
        else:
            assert isinstance(config, ArticleConfig)
            initial = articles.initial_encoder(config, store)
    except ConfigError as error:
        # Its source may have moved since; the trained model is there.
        return _Run(config, precision, None, [f"no row initial: {str(error).rstrip('.')}"])
    return _Run(config, precision, initial, [])


def _evaluator(
    model: EmbeddingModel,
    encoder: Encoder,
    store: LinkedStore,
    config: Config,
    initial: Encoder | None,
) -> LinkEvaluator:
    """Return the evaluation of a model; it reads rows as the model's folder says."""
    fresh = None if initial is None else lambda: initial
    if isinstance(store, ProteinStore):
        assert isinstance(config, ProteinConfig)
        assert isinstance(encoder, ProteinEncoder)
        length = min(model.max_tokens or encoder.max_tokens, encoder.max_tokens)
        return proteins.link_evaluator(config, store, encoder, max_length=length, fresh=fresh)
    assert isinstance(config, ArticleConfig)
    assert isinstance(encoder, TextEncoder)
    read = text_rows(store, encoder, is_masked=False)
    return articles.link_evaluator(config, store, encoder, read, fresh=fresh)


def _contents(store: LinkedStore) -> Iterator[pa.ChunkedArray]:
    """Yield the inputs of the rows in blocks."""
    for start in range(0, store.num_rows, _ROWS_AT_ONCE):
        end = min(start + _ROWS_AT_ONCE, store.num_rows)
        _, contents = store.inputs(store.input_fields[0], start, end)
        yield pa.chunked_array([contents])
