"""The parts of SPPT wired together, for rows of any kind: proteins or texts.

Shape letters: S nodes of an evaluation, N rows, E links, D embedding width.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from raybio.core.final_report import LabeledMap, SplitScores, Stage
from raybio.core.interfaces import Collective, Encoder, Evaluate, Export, FinalEvaluate, System
from raybio.core.randomness import derive_seed
from raybio.encoders.config import SCRATCH
from raybio.evaluation.evaluator import (
    RIVAL_SEED,
    Evaluator,
    ModelScores,
    Untrained,
    bootstrap_seed,
    chosen_on,
    device_of,
)
from raybio.evaluation.projection import map_sample
from raybio.methods.sppt.batches import LinkBatch
from raybio.methods.sppt.collate import LinkCollate, ReadRows, unmasked
from raybio.methods.sppt.config import LinkEvaluationConfig, MaskConfig, ObjectiveConfig
from raybio.methods.sppt.evaluate import (
    LinkQueries,
    draw_link_queries,
    evaluate_links,
    retrieve_links,
)
from raybio.methods.sppt.gnn_rival import MAX_NODES, NAME, NAME_ON_MODEL, gnn_rival
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.link_retrieval import LinkRetrieval
from raybio.methods.sppt.objective import StructurePreserving
from raybio.methods.sppt.plan import LinkPlan
from raybio.methods.sppt.rivals import Rival, limits, link_rivals, rank_by_rival
from raybio.methods.sppt.scores import chance_scores, link_unit_scores, scores_with_intervals
from raybio.ops.embedding_geometry import spread_metrics
from raybio.training.embed import embed_rows
from raybio.training.settings import TrainingConfig

MAX_MAP_ROWS = 1500

KeptEmbeddings = Callable[[np.ndarray, Callable[[], Tensor]], Tensor]


class Linked(Protocol):
    """A graph store, or any other object with linked rows."""

    @property
    def graph(self) -> Graph:
        """The training graph."""
        ...

    @property
    def heldout(self) -> np.ndarray:
        """Links (E, 2) that are kept out of the training graph."""
        ...

    @property
    def group_labels(self) -> Sequence[str]:
        """Display name of each group."""
        ...


def link_system(
    name: str,
    config: Any,
    linked: Linked,
    *,
    encoder: Encoder,
    read: ReadRows,
    masks: MaskConfig,
    evaluate: Evaluate,
    final_evaluate: FinalEvaluate,
    export: Export,
    data_digest: str,
    self_loops: bool = False,
    prepare_node: Callable[[], None] | None = None,
) -> System:
    """Return the system of SPPT over linked rows.

    Args:
        name: key in ``raybio.methods.METHODS``.
        config: settings with ``seed``, ``encoder``, ``objective`` and ``plan``.
        linked: rows and links.
        encoder: model to train.
        read: reader of rows as tokens.
        masks: settings of masking.
        evaluate: evaluation during training.
        final_evaluate: evaluation of the finished run.
        export: writer of the trained encoder.
        data_digest: changes with everything that the tokens of the rows depend on.
        self_loops: whether a node is among its own positives, see ``LinkPlan``.
        prepare_node: see ``System``.
    """
    objective: ObjectiveConfig = config.objective
    if self_loops:
        # Copies of a node are linked, as it is linked with itself.
        objective = objective.model_copy(update={"same_node": "positive"})
    collate = LinkCollate(
        linked,
        config.plan,
        masks,
        read,
        config.seed,
        with_pairs=objective.lambda_spml > 0,
        mask_anchors=objective.lambda_spml < 1 or objective.masked_anchors,
        self_loops=self_loops,
    )
    return System(
        name=name,
        model=encoder,
        objective=StructurePreserving(objective, config.plan.num_positives_per_anchor),
        batch_type=LinkBatch,
        collate=collate,
        steps_per_epoch=collate.plan.steps_per_epoch,
        evaluate=evaluate,
        final_evaluate=final_evaluate,
        export=export,
        data_digest=data_digest,
        is_pretrained=config.encoder.source != SCRATCH,
        prepare_node=prepare_node,
    )


def link_steps_per_epoch(config: Any, linked: Linked, *, self_loops: bool = False) -> float:
    """Return the steps in which each node with a positive is an anchor once."""
    return LinkPlan(
        linked.graph, config.plan, config.seed, linked.heldout, self_loops
    ).steps_per_epoch


def check_link_plan(config: Any, linked: Linked, *, self_loops: bool = False) -> None:
    """Refuse a plan that does not fit the links, before anything starts.

    Raises:
        ConfigError: if a batch is larger than the graph, and anchors are drawn without replacement.
        DataError: if there are no links, or a node is linked to all others.
    """
    plan = LinkPlan(linked.graph, config.plan, config.seed, linked.heldout, self_loops)
    if config.objective.lambda_spml > 0:
        plan.check_negatives()


@dataclass(frozen=True)
class LinkEvaluator(Evaluator):
    """Link retrieval of a model over the rows.

    Attributes:
        linked: rows and links.
        read: reader of rows as tokens, without random crops.
        fresh: returns the encoder with its initial weights; None: they are unknown, and the report
            has no such row.
        evaluation: settings of link retrieval.
        config: the run's seed and memory.
        tokens: names the tokens that ``read`` returns: their tokenizer, and where they are cut.
        heldout_parts: held-out links that the final evaluation also scores by themselves, by name.
        content: name of the rival that compares contents.
        content_ngram: tokens of its n-grams.
        composition: whether the shares of tokens are a rival as well.
        kept: returns the embeddings of rows from an earlier evaluation, or by calling its second
            argument; None: they are computed.
    """

    content: ClassVar[str] = "3-mers"
    content_ngram: ClassVar[int] = 3
    composition: ClassVar[bool] = True

    linked: Linked
    read: ReadRows
    fresh: Callable[[], Encoder] | None
    evaluation: LinkEvaluationConfig
    config: TrainingConfig
    tokens: str
    heldout_parts: Mapping[str, np.ndarray] = field(default_factory=dict)
    kept: KeptEmbeddings | None = None

    def evaluate_during_training(
        self, model: Encoder, collective: Collective
    ) -> Mapping[str, float]:
        """Return ``train/link_*`` and ``val/link_*`` on the sampled nodes."""
        queries = self._sampled_queries
        embedding_SD = self.embed(model, collective, queries.node_S)
        links = evaluate_links(queries, embedding_SD, self.evaluation, collective)
        return links | spread_metrics(embedding_SD)

    def initial_encoder(self) -> Encoder:
        """Return the encoder with its initial weights."""
        assert self.fresh is not None
        return self.fresh()

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score the links of the nodes of the final evaluation; draw a map of the trained model."""
        rng = self._bootstrap()
        embedding_SD = self.embed(model, collective, self._queries.node_S)
        spread = spread_metrics(embedding_SD)
        scores = self._score_vectors(embedding_SD, collective, rng)
        is_drawn = stage == "trained" and collective.rank == 0
        draw_map = self._map(embedding_SD, rng) if is_drawn else None
        return replace(scores, spread=spread, draw_map=draw_map)

    def untrained(self, model: Encoder, collective: Collective) -> Iterator[Untrained]:
        """Yield random vectors, each rival, the initial encoder and a graph network over it."""
        device = device_of(model)
        yield Untrained.row("random", partial(self.score_random, model, collective))
        # A generator of its own: what rivals read is freed with it.
        yield from self._untrained_rivals(device, collective)
        if self.fresh is not None:
            yield self.initial(device, collective)
        if self.evaluation.gnn and self.linked.graph.num_nodes <= MAX_NODES:
            name = NAME_ON_MODEL if self.fresh is None else NAME
            yield Untrained.row(name, partial(self._graph_network, name, model, collective))

    def score_random(self, model: Encoder, collective: Collective) -> ModelScores:
        """Score random vectors of the width of ``model``."""
        seed = derive_seed(self.config.seed, "random-vectors") % 2**63
        generator = torch.Generator().manual_seed(seed)
        num_nodes = len(self._queries.node_S)
        # One matrix at a time: on Tree of life each takes gigabytes.
        noise_SD = torch.randn(num_nodes, model.width, generator=generator).to(device_of(model))
        return self._score_vectors(noise_SD, collective, self._bootstrap())

    def _graph_network(self, name: str, model: Encoder, collective: Collective) -> ModelScores:
        """Score a graph network over the initial encoder, or else over the model."""
        device = device_of(model)
        frozen = model if self.fresh is None else self.initial_encoder().to(device)
        all_N = np.arange(self.linked.graph.num_nodes)
        rival = gnn_rival(
            self.embed(frozen, collective, all_N),
            self.linked.graph,
            self._queries.node_S,
            collective,
            seed=self.config.seed,
            name=name,
        )
        return self._score_ranking(rival, device, collective, self._bootstrap())

    def rivals(
        self, device: torch.device, collective: Collective
    ) -> Iterator[tuple[Stage, ModelScores]]:
        """Score the rankings that need no encoder, unless the settings exclude them."""
        for untrained in self._untrained_rivals(device, collective):
            yield from untrained.rows()

    def _untrained_rivals(
        self, device: torch.device, collective: Collective
    ) -> Iterator[Untrained]:
        for name, rival in self.rivals_of(self._queries, collective).items():
            score = partial(self.score_rival, name, rival, device, collective)
            yield Untrained.row(name, score, self.tokens)

    def score_rival(
        self,
        name: str,
        rival: Callable[[], Rival],
        device: torch.device,
        collective: Collective,
    ) -> ModelScores:
        """Score a ranking that needs no encoder.

        Args:
            name: name of its row.
            rival: computes what it reads, and returns it.
            device: device that does the work.
            collective: workers that share the work.
        """
        rng = np.random.default_rng(RIVAL_SEED)
        return self._score_ranking(rival(), device, collective, rng)

    def rivals_of(
        self, queries: LinkQueries, collective: Collective
    ) -> dict[str, Callable[[], Rival]]:
        """Return ``link_rivals`` of some nodes and links; none if the settings exclude them."""
        if not self.evaluation.rivals:
            return {}
        return link_rivals(
            queries,
            self.linked.graph,
            self.read,
            self.content,
            self.content_ngram,
            composition=self.composition,
            collective=collective,
        )

    def _score_ranking(
        self,
        rival: Rival,
        device: torch.device,
        collective: Collective,
        rng: np.random.Generator,
    ) -> ModelScores:
        retrievals = rank_by_rival(
            rival,
            self._queries,
            block_rows=self.evaluation.block_rows,
            device=device,
            collective=collective,
        )
        return self._scores_of(retrievals, rng)

    def sizes(self) -> Mapping[str, str]:
        """Return the number of links of each split, and of the nodes that have one."""
        sizes = {}
        for name, split in self._queries.splits.items():
            num_nodes = int((split.links.degree_N > 0).sum())
            sizes[name] = f"{split.links.num_edges:,} links of {num_nodes:,} nodes"
        return sizes

    def details(self) -> Mapping[str, Any]:
        """Return the number of nodes."""
        return {"evaluated_nodes": len(self._queries.node_S)}

    def remarks(self) -> Sequence[str]:
        """Return remarks on samples of nodes behind scores and steps, and on limits of rivals."""
        num_nodes = self.linked.graph.num_nodes
        num_evaluated = len(self._queries.node_S)
        remarks = []
        if num_evaluated < num_nodes:
            evaluation = self.evaluation
            drawn = evaluation.num_nodes_per_group_at_the_end
            num_groups = len(np.unique(self.linked.graph.group_N))
            groups = min(evaluation.num_groups_at_the_end, num_groups)
            is_every_group = groups in (0, num_groups)
            remarks.append(
                f"{num_evaluated:,} of {num_nodes:,} nodes were evaluated: "
                + (f"{drawn:,} drawn nodes" if drawn else "all nodes")
                + (" of each group" if is_every_group else f" of each of {groups:,} drawn groups")
                + f" and {self._neighbors_kept()}"
            )
        if self.config.schedule.best_metric is not None:
            queries = self._sampled_queries
            if len(queries.node_S) < num_nodes:
                links = [
                    f"{split.links.num_edges:,} {name} links"
                    for name, split in queries.splits.items()
                ]
                noun = f"nodes, with {' and '.join(links)}"
                settings = ", ".join(self._settings_of_the_sample())
                remarks.append(chosen_on(len(queries.node_S), num_nodes, noun, settings))
        if self.evaluation.gnn and num_nodes > MAX_NODES:
            remarks.append(
                f"no row of a graph network: {num_nodes:,} nodes are more than {MAX_NODES:,}"
            )
        if self.evaluation.rivals:
            remarks += limits(self._queries, self.linked.graph, composition=self.composition)
        return remarks

    def _settings_of_the_sample(self) -> list[str]:
        """Return the settings that keep nodes out of evaluations during training."""
        evaluation = self.evaluation
        queries = self._sampled_queries
        groups, sizes = np.unique(self.linked.graph.group_N, return_counts=True)
        largest = sizes[np.isin(groups, queries.group_S)].max()
        settings = []
        if 0 < evaluation.num_nodes_per_group < largest:
            settings.append("evaluation.num_nodes_per_group")
        if 0 < evaluation.num_groups < len(groups):
            settings.append("evaluation.num_groups")
        if queries.num_left_out:
            settings.append("evaluation.max_neighbors")
        return settings

    def _neighbors_kept(self) -> str:
        num_left_out = self._queries.num_left_out
        if num_left_out == 0:
            return "their neighbors"
        num_kept = self.evaluation.max_neighbors_at_the_end
        return (
            f"{num_kept:,} of their {num_kept + num_left_out:,} neighbors "
            "(evaluation.max_neighbors_at_the_end), so that drawn nodes with most links are scored "
            "on a random part of them"
        )

    def _score_vectors(
        self, vector_SD: Tensor, collective: Collective, rng: np.random.Generator
    ) -> ModelScores:
        retrievals = retrieve_links(self._queries, vector_SD, self.evaluation, collective)
        return self._scores_of(retrievals, rng)

    def _scores_of(
        self, retrievals: Mapping[str, LinkRetrieval], rng: np.random.Generator
    ) -> ModelScores:
        return ModelScores(
            scores=scores_with_intervals(retrievals, rng),
            chance=self._chance,
            unit_scores=link_unit_scores(retrievals, self._queries.node_S),
        )

    def _map(self, embedding_SD: Tensor, rng: np.random.Generator) -> Callable[[], LabeledMap]:
        sample = map_sample(embedding_SD.cpu().numpy(), rng, max_rows=MAX_MAP_ROWS)
        labels = self.linked.group_labels
        groups = [labels[group] for group in self._queries.group_S[sample.row_S]]
        return lambda: LabeledMap(sample.lay_out().position_S2, groups)

    def _bootstrap(self) -> np.random.Generator:
        return np.random.default_rng(bootstrap_seed(self.config.seed))

    def embed(self, model: Encoder, collective: Collective, row_N: np.ndarray) -> Tensor:
        """Return the embeddings (N, D) of rows."""
        max_tokens = self.config.memory.max_tokens_per_micro_batch
        compute = partial(
            embed_rows,
            model,
            partial(unmasked, self.read),
            row_N,
            collective,
            max_tokens=max_tokens,
        )
        return compute() if self.kept is None else self.kept(row_N, compute)

    @cached_property
    def _queries(self) -> LinkQueries:
        """Nodes and links of the final evaluation."""
        num_nodes = self.evaluation.num_nodes_per_group_at_the_end
        return draw_link_queries(
            self.linked.graph,
            self.linked.heldout,
            num_nodes,
            parts=self.heldout_parts,
            num_groups=self.evaluation.num_groups_at_the_end,
            max_neighbors=self.evaluation.max_neighbors_at_the_end,
        )

    @cached_property
    def _chance(self) -> SplitScores:
        return chance_scores(self._queries)

    @cached_property
    def _sampled_queries(self) -> LinkQueries:
        """Nodes and links of evaluations during training; equal for all runs over a store."""
        return draw_link_queries(
            self.linked.graph,
            self.linked.heldout,
            self.evaluation.num_nodes_per_group,
            num_groups=self.evaluation.num_groups,
            max_neighbors=self.evaluation.max_neighbors,
        )
