"""The systems: one module a published method, and the one table that names them all."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybio.core.interfaces import System
from raybio.encoders.input_lengths import InputLengths, no_input_lengths
from raybio.methods.biostransformers import system as siamese
from raybio.methods.biostransformers.store import ArticleStore
from raybio.methods.contrastive_probe import system as contrastive_probe
from raybio.methods.contrastive_probe.store import ClozeStore
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mccl import system as relation_extraction
from raybio.methods.mtb_mccl.mtb import system as matching_blanks
from raybio.methods.relation_graphs import system as relation_graphs
from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.sppt.articles import system as structure_preserving_text
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.downstream import system as downstream
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.methods.sppt.proteins import system as structure_preserving
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.methods.sppt.synthetic import system as synthetic_graphs
from raybio.methods.sppt.synthetic.topics import TopicStore
from raybio.store.store import Store
from raybio.training.settings import TrainingConfig


@dataclass(frozen=True)
class TableLayout:
    """How the scores of a final evaluation are shown.

    Attributes:
        title: what they are scores of.
        measures: name of a score -> its heading.
        splits: name of a split -> what it is called; a table each.
        chance: how the scores of the row "chance" are computed.
        plain: scores that are shown as they are; all others in percent.
        beside: splits that are a part of another one, or another way to ask it: in tables alone, neither tested nor
            drawn against settings.
    """

    title: str
    measures: Mapping[str, str]
    splits: Mapping[str, str]
    chance: str = "candidates in random order, exactly"
    plain: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()

    @property
    def judged(self) -> list[str]:
        """Splits by which runs are told apart; the last one counts most."""
        return [split for split in self.splits if split not in self.beside]


@dataclass(frozen=True)
class SystemEntry:
    """What a system's module offers.

    Attributes:
        config: its settings; the defaults are the paper's.
        demo: settings for the embedded default corpus on a laptop.
        store: the kind of store that it trains on.
        check: (config, store) -> nothing, or the error that building would end with, without loading the encoder.
        input_lengths: (config, store) -> how many rows are longer than what is read, without loading the encoder.
        build: (config, store path) -> the wired system.
        comparison: the values of a setting that a run is compared with, as ``--compare`` takes them; None: none.
        table: how the scores of final evaluations are shown.
        step_metrics: the evaluation metrics that comparisons show over the steps of runs, those that the runs have.
        prepare_demo: folder -> path of the embedded default corpus, prepared there once.
    """

    config: type[TrainingConfig]
    demo: TrainingConfig
    store: type[Store]
    check: Callable[[Any, Any], None]
    input_lengths: Callable[[Any, Any], list[InputLengths]]
    build: Callable[[Any, str | Path], System]
    comparison: str | None
    table: TableLayout
    step_metrics: tuple[str, ...]
    prepare_demo: Callable[[str | Path], Path]


LINK_RETRIEVAL = TableLayout(
    title="Link retrieval",
    measures={"lrap": "LRAP", "ndcg": "nDCG", "average_precision": "AP", "mrr": "MRR"},
    splits={
        "train": "training links",
        "val": "held-out links",
        "samples": "samples of test graphs",
    },
    plain=frozenset({"mrr"}),
    beside=frozenset({"samples"}),
)


SYSTEMS: dict[str, SystemEntry] = {
    "structure_preserving": SystemEntry(
        config=structure_preserving.Config,
        demo=structure_preserving.DEMO,
        store=ProteinStore,
        check=structure_preserving.check,
        input_lengths=structure_preserving.input_lengths,
        build=structure_preserving.build,
        comparison="objective.lambda_spml=0",
        table=LINK_RETRIEVAL,
        step_metrics=("val/link_mrr",),
        prepare_demo=structure_preserving.prepare_demo,
    ),
    "structure_preserving_text": SystemEntry(
        config=structure_preserving_text.Config,
        demo=structure_preserving_text.DEMO,
        store=LinkedTextStore,
        check=structure_preserving_text.check,
        input_lengths=structure_preserving_text.input_lengths,
        build=structure_preserving_text.build,
        comparison="objective.lambda_spml=0",
        table=LINK_RETRIEVAL,
        step_metrics=("val/link_mrr",),
        prepare_demo=structure_preserving_text.prepare_demo,
    ),
    "synthetic_graphs": SystemEntry(
        config=synthetic_graphs.Config,
        demo=synthetic_graphs.DEMO,
        store=TopicStore,
        check=synthetic_graphs.check,
        input_lengths=synthetic_graphs.input_lengths,
        build=synthetic_graphs.build,
        comparison="objective.lambda_spml=0",
        table=TableLayout(
            title="Classes of nodes by their neighbours",
            measures={"auroc": "AUROC", "accuracy": "accuracy"},
            splits={"nodes": "nodes of the graph, each left out"},
            chance="AUROC of scores that are independent of the class, accuracy of the most frequent class",
        ),
        step_metrics=("nodes/auroc",),
        prepare_demo=synthetic_graphs.prepare_demo,
    ),
    "downstream": SystemEntry(
        config=downstream.Config,
        demo=downstream.DEMO,
        store=TaskStore,
        check=downstream.check,
        input_lengths=downstream.input_lengths,
        build=downstream.build,
        comparison=None,
        table=TableLayout(
            title="Downstream task (accuracy, macro F1 or Spearman's rank correlation)",
            measures={"score": "score"},
            splits={
                "dev": "validation rows",
                "test": "test rows",
                "new_test": "test rows that training has not",
            },
            chance="the most frequent class, or the mean number, of the training rows",
            beside=frozenset({"new_test"}),
        ),
        step_metrics=("val/score",),
        prepare_demo=downstream.prepare_demo,
    ),
    "siamese": SystemEntry(
        config=siamese.Config,
        demo=siamese.DEMO,
        store=ArticleStore,
        check=siamese.check,
        input_lengths=siamese.input_lengths,
        build=siamese.build,
        comparison=None,
        table=TableLayout(
            title="Term retrieval",
            measures={
                "recall_at_1": "recall@1",
                "recall_at_10": "recall@10",
                "recall_at_100": "recall@100",
                "r_precision": "R-precision",
            },
            splits={
                "text_to_term": "held-out texts to terms",
                "term_to_text": "terms to held-out texts",
            },
        ),
        step_metrics=("val/text_to_term_recall_at_10",),
        prepare_demo=siamese.prepare_demo,
    ),
    "contrastive_probe": SystemEntry(
        config=contrastive_probe.Config,
        demo=contrastive_probe.DEMO,
        store=ClozeStore,
        check=contrastive_probe.check,
        input_lengths=contrastive_probe.input_lengths,
        build=contrastive_probe.build,
        comparison=None,
        table=TableLayout(
            title="Probing",
            measures={
                "acc_at_1": "acc@1",
                "acc_at_5": "acc@5",
                "acc_at_10": "acc@10",
                "micro_acc_at_1": "acc@1 (micro)",
                "micro_acc_at_10": "acc@10 (micro)",
            },
            splits={"full": "full set", "hard": "hard set"},
        ),
        step_metrics=("val/acc_at_10", "val/hard_acc_at_10"),
        prepare_demo=contrastive_probe.prepare_demo,
    ),
    "matching_blanks": SystemEntry(
        config=matching_blanks.Config,
        demo=matching_blanks.DEMO,
        store=DocumentStore,
        check=matching_blanks.check,
        input_lengths=matching_blanks.input_lengths,
        build=matching_blanks.build,
        comparison=None,
        table=TableLayout(
            title="Retrieval of entity pairs",
            measures={"recall_at_1": "recall@1", "recall_at_10": "recall@10", "mrr": "MRR"},
            splits={"train": "pairs of training", "val": "held-out pairs"},
            plain=frozenset({"mrr"}),
        ),
        step_metrics=("val/pair_mrr",),
        prepare_demo=matching_blanks.prepare_demo,
    ),
    "relation_extraction": SystemEntry(
        config=relation_extraction.Config,
        demo=relation_extraction.DEMO,
        store=DocumentStore,
        check=relation_extraction.check,
        input_lengths=relation_extraction.input_lengths,
        build=relation_extraction.build,
        comparison=None,
        table=TableLayout(
            title="Relation extraction",
            measures={
                "f1": "F1",
                "precision": "precision",
                "recall": "recall",
                "macro_f1": "macro F1",
            },
            splits={"dev": "validation documents", "test": "test documents"},
            chance="every pair has the most frequent relation of the training pairs",
        ),
        step_metrics=("val/f1",),
        prepare_demo=relation_extraction.prepare_demo,
    ),
    "relation_graphs": SystemEntry(
        config=relation_graphs.Config,
        demo=relation_graphs.DEMO,
        store=WordStore,
        check=relation_graphs.check,
        input_lengths=no_input_lengths,
        build=relation_graphs.build,
        comparison=None,
        table=TableLayout(
            title="Entities and relations",
            measures={
                "ner_f1": "NER",
                "re_f1": "RE (strict)",
                "re_minus_f1": "RE-",
                "probe_f1": "RE- (linear probe)",
            },
            splits={"dev": "validation sentences", "test": "test sentences"},
            chance="every word is an entity of the most frequent type, every two words have the most frequent relation",
        ),
        step_metrics=("val/re_minus_f1", "val/ner_f1"),
        prepare_demo=relation_graphs.prepare_demo,
    ),
}
