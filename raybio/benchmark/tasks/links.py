"""Link retrieval of SPPT on a store: the figures of ``raybio evaluate links``."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from raybio.benchmark.models import BenchmarkModel, on_device
from raybio.benchmark.quality import corpus_quality, pair_quality
from raybio.benchmark.saved_embeddings import Embedded
from raybio.benchmark.stores import StoreLocation, missing_store, prepared, store_files
from raybio.benchmark.task import (
    CHANCE,
    NOT_MEASURED,
    RANDOM,
    BenchmarkEncoder,
    BenchmarkTask,
    Reads,
    TaskFacts,
    TaskScores,
    missing_files,
)
from raybio.core.config import fingerprint
from raybio.core.distance import Distance
from raybio.core.errors import ConfigError
from raybio.core.final_report import FinalReport, Stage
from raybio.core.location import Location
from raybio.methods import METHODS
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.graph_store import ROWS, GraphStore, open_graph
from raybio.methods.sppt.model_links import LinkEvaluationOptions, evaluate_model_links
from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.proteins.formats.tables import Tables
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.methods.sppt.table import LINK_RETRIEVAL
from raybio.runtime.run.options import default_folder

_PRIMARY = "lrap"

_PROTOCOL = (
    "For each node with a held-out link, the other nodes of its group are ranked by the distance "
    "of embeddings (SPPT, McDermott et al. 2023). Score: LRAP (label ranking average precision) of "
    "{links}, the mean over nodes. Training links are no candidates, nor are other held-out links."
)

_LEAKAGE = (
    "Of {links:,} held-out links, {with_twin:,} have a twin: training links relatives of both "
    "ends. Training links reach both ends, or relatives of theirs, of {c1:,} (C1), one end of "
    "{c2:,} (C2), none of {c3:,} (C3)."
)


class LinksTask(BenchmarkTask):
    """Held-out links of proteins or articles."""

    family: ClassVar[str] = "Links"
    rivals_read_the_model: ClassVar[bool] = True

    store: StoreLocation | None = Field(
        None, description="prepared store of proteins or of articles"
    )
    demo: Literal["sppt_protein", "sppt_mag"] | None = Field(
        None, description="method whose built-in corpus is taken, instead of a store"
    )
    edges: Path | None = Field(None, description="instead of a store: links of proteins")
    proteins: Path | None = Field(None, description="sequences of these proteins")
    held_out: Literal["random", "proteins", "homology"] = Field(
        "random", description="edges only: how links are held out, as by `raybio prepare proteins`"
    )
    min_score: float = Field(0.0, ge=0, description="edges only: least score of a link")
    scored: Literal["val", "no_twins", "c1", "c2", "c3"] = Field(
        "val", description="held-out links of the primary measure: all, or those of a class"
    )
    nodes: int | None = Field(
        None, ge=0, description="nodes drawn of each group; 0: all; null: the method's"
    )
    metric: Distance | None = Field(None, description="distance; null: the method's")

    @property
    def reads(self) -> Reads:
        """Kind of inputs."""
        if self.store is None:
            return "texts" if self.demo == "sppt_mag" else "proteins"
        is_protein = open_graph(self._path).manifest["kind"] == ProteinStore.kind
        return "proteins" if is_protein else "texts"

    @property
    def measure(self) -> str:
        """Name of the score."""
        return LINK_RETRIEVAL.measures[_PRIMARY]

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest possible score."""
        return (0.0, 1.0)

    @property
    def group(self) -> str:
        """Tasks on the same rows share embeddings."""
        return f"links of {self.store or self.demo or self.edges}"

    def check(self) -> str:
        """Return why the task cannot run.

        Raises:
            ConfigError: unless exactly one of store, demo and edges (with proteins) is given, or if
                settings of edges are given without edges.
        """
        num_given = sum(given is not None for given in (self.store, self.demo, self.edges))
        if num_given != 1 or (self.edges is None) != (self.proteins is None):
            raise ConfigError(f"task {self.name}: want one of store, demo, and edges with proteins")
        if self.edges is None:
            self.refuse(("held_out", "min_score"), "without edges")
        if self.store is None:
            wanted = "want links and sequences, as `raybio prepare proteins` reads them"
            return missing_files(self._sources.values(), wanted)
        reason = missing_store(self.store, GraphStore)
        wanted = "Want a store of `raybio prepare proteins` or `raybio prepare articles`."
        return f"{reason} {wanted}" if reason else ""

    def files(self) -> Mapping[str, Path]:
        """Return the source files, or the store's manifest."""
        return self._sources or store_files(self._path)

    def facts(self) -> TaskFacts:
        """Return protocol and sizes."""
        store = open_graph(self._path)
        graph = store.graph
        size = f"{graph.num_nodes:,} nodes, {len(store.heldout):,} held-out links"
        counts = store.manifest.get("leakage")
        leakage = _LEAKAGE.format(**counts) if counts else NOT_MEASURED
        protocol = _PROTOCOL.format(links=LINK_RETRIEVAL.splits[self.scored])
        return TaskFacts(protocol, size, leakage)

    def score(self, model: BenchmarkEncoder) -> TaskScores:
        """Retrieve links by distances of embeddings; measure the quality of these."""
        embedded: list[tuple[np.ndarray, Tensor]] = []
        report = self._evaluated(model, embedded, with_rivals=False)
        scores = self._scores(report, "trained")
        others = {**scores.others, **self._quality(*embedded[-1])}
        # The page names the model in front of each remark.
        remarks = tuple(remark.removeprefix(f"{model.name}: ") for remark in report.remarks)
        return replace(scores, others=others, remarks=remarks)

    def rivals(self, model: BenchmarkEncoder | None) -> Mapping[str, TaskScores]:
        """Retrieve links without an encoder; contents are read in the model's tokens."""
        assert model is not None
        report = self._evaluated(model, [], with_rivals=True)
        untrained = [
            name for name in report.scores if name not in (CHANCE, RANDOM, "initial", "trained")
        ]
        return {name: self._scores(report, name) for name in [*untrained, RANDOM, CHANCE]}

    def _quality(self, row_S: np.ndarray, embedding_SD: Tensor) -> dict[str, float]:
        """Return the spread of embeddings, and how near linked ones are on the unit sphere."""
        graph = open_graph(self._path)
        number_N = np.full(graph.graph.num_nodes, -1)
        number_N[row_S] = np.arange(len(row_S))
        pair_P2 = number_N[np.asarray(graph.heldout)]
        first_P, second_P = pair_P2[(pair_P2 >= 0).all(axis=1)].T
        return corpus_quality("nodes", embedding_SD) | pair_quality(
            "held-out links", embedding_SD, embedding_SD, first_P, second_P
        )

    def _evaluated(
        self,
        model: BenchmarkEncoder,
        embedded: list[tuple[np.ndarray, Tensor]],
        *,
        with_rivals: bool,
    ) -> FinalReport:
        """Return the evaluation, and append rows (S,) and embeddings (S, D) of the nodes."""
        assert isinstance(model, BenchmarkModel)
        options = LinkEvaluationOptions(
            nodes=self.nodes,
            metric=self.metric,
            precision=model.precision,
            rivals=with_rivals,
            as_in_its_run=False,
        )
        # Stores that hold out other links of the same rows share embeddings.
        rows_sha256 = open_graph(self._path).manifest["files"][ROWS]["sha256"]
        what = f"linked rows {rows_sha256[:12]}"

        def kept(row_N: np.ndarray, compute: Callable[[], Tensor]) -> Tensor:
            rows = [str(row) for row in row_N]
            vectors = model.saved(what, rows, lambda: Embedded(compute().cpu().numpy(), len(rows)))
            embedding_ND = on_device(vectors)
            embedded.append((row_N, embedding_ND))
            return embedding_ND

        return evaluate_model_links(
            {model.name: model.whole_inputs}, self._path, options, kept=kept
        )

    def _scores(self, report: FinalReport, stage: Stage) -> TaskScores:
        scores = report.scores[stage]
        if "val" not in scores:
            raise ConfigError(
                f"task {self.name}: the store has no held-out links; prepare it with some"
            )
        if self.scored not in scores:
            classes = ", ".join(name for name in LINK_RETRIEVAL.splits if name in scores)
            raise ConfigError(
                f"task {self.name}: scored {self.scored}, but none or all of the store's held-out "
                f"links are of this class; its splits: {classes}"
            )
        others = {}
        for split, title in LINK_RETRIEVAL.splits.items():
            for measure, short in LINK_RETRIEVAL.measures.items():
                is_primary = (split, measure) == (self.scored, _PRIMARY)
                if not is_primary and measure in scores.get(split, {}):
                    others[f"{short}, {title}"] = scores[split][measure]["value"]
        value = scores[self.scored][_PRIMARY]["value"]
        if stage == CHANCE:  # exact, without units
            return TaskScores.of_means([], [], others, value=value)
        units = report.unit_scores[stage][self.scored]
        return TaskScores.of_means(
            units.unit_U.tolist(),
            np.asarray(units.value_by_measure[_PRIMARY], np.float64),
            others,
            value=value,
        )

    @property
    def _path(self) -> Location:
        if self.store is not None:
            return self.store
        if self.edges is not None:
            return self._prepared.location
        assert self.demo is not None
        folder = default_folder("stores", "RAYBIO_STORES").absolute()
        return Path(METHODS[self.demo].prepare_demo(folder))

    @property
    def _sources(self) -> dict[str, Path]:
        if self.edges is None or self.proteins is None:
            return {}
        return {"edges": self.edges, "proteins": self.proteins}

    @cached_property
    def _prepared(self) -> ProteinStore:
        edges, proteins = self._sources.values()
        config = PrepareConfig(held_out=self.held_out, min_score=self.min_score)
        tables = Tables([edges], [proteins])
        return prepared(
            f"links-{fingerprint(config)[:4]}",
            self._sources,
            ProteinStore,
            lambda path: prepare_proteins(path, tables, config),
        )
