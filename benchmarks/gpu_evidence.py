"""Tables of the papers at their published lengths on one GPU, in turns of some minutes, without Ray.

    PYTHONPATH=. python benchmarks/gpu_evidence.py --data DATA --encoder FOLDER --out OUT [--minutes 25] [--processes 4]
        [--only biored,ade,medlama,graphs]
    PYTHONPATH=. python benchmarks/gpu_evidence.py --out OUT --table
    PYTHONPATH=. python benchmarks/gpu_evidence.py --small --out OUT

Parts, each with the settings of its ``paper_*`` recipe except the encoder:

- ``biored``: MTB, then CE, SupCon and MCCL on 1 % and 100 % of BioRED's labels, with and without MTB, five seeds
- ``ade``: CLNER, CLDR, CLGS and joint on ten folds, at most 20 epochs; then each once more on training and validation
  sentences for its best number of steps, as in the paper
- ``medlama``: three sentence sets x three seeds x depths of the encoder
- ``graphs``: the eight graphs of SPPT's Table 1, three draws, with and without the graph loss

``results.jsonl`` in OUT has a line for each training that ended: all rows of its final table (chance, rivals, initial,
trained) and its training curve. ``unit_scores/NAME.npz`` has the scores of its units, for tests over seeds and units
(``raybio.evaluation.unit_scores``). Given again, the command takes the next ones. What the time cuts off resumes from
its checkpoint if OUT still has it, and begins anew if not: keep ``results.jsonl`` and ``unit_scores`` at least.
While more trainings wait for the export of one than there are processes (BioRED's for MTB), it runs alone.
``--table`` prints the results as Markdown: mean ± deviation, intervals over units (from three trainings on over seeds,
too) where the trainings of a row have the same units, and epochs next to the published ones. A training that fails is
printed, and tried again by the next call; the exit status is then 1.

DATA has the public files in folders ``biored`` (Train, Dev, Test.PubTator.gz), ``pubtator_central`` or ``pubtator_ner``
(PubTator), ``ade`` (ade_full_spert.json.gz, cv_splits.json.gz), ``sentences`` (one a line) and ``medlama/2021AA``.
Cliques and cycles have the published 100 topics, surfaces 20: every triangle needs 25 sentences of its three topics, and
of 105,000 sentences too few triples of 100 topics have as many. Without PubTator Central MTB draws pairs that two
documents share: the 5,400 documents of ``pubtator_ner`` have 16 pairs in 16 documents, the published threshold.
``--small`` runs a short queue on built-in corpora with two steps each, to test the script on any machine. It needs what
``raybio`` imports below ``raybio/runtime/``, and no network.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils.logging import disable_progress_bar

from raybio.core.config import merge, override_all
from raybio.core.final_report import UnitScores
from raybio.core.markdown import markdown_table
from raybio.core.shared_scores import SharedScores
from raybio.evaluation.unit_scores import (
    interval_over_runs,
    read_unit_scores,
    stored_unit_scores,
    write_unit_scores,
)
from raybio.methods import METHODS
from raybio.methods.contrastive_probe.demo import SIMULATED_KNOWLEDGE, KnowledgeConfig
from raybio.methods.contrastive_probe.prepare import prepare_sentences
from raybio.methods.mtb_mccl.documents.demo import SIMULATED_DOCUMENTS, DocumentsConfig
from raybio.methods.mtb_mccl.documents.prepare import prepare_documents
from raybio.methods.relation_graphs.demo import SIMULATED_WORDS, WordsConfig
from raybio.methods.relation_graphs.evaluation.evaluate_export import evaluate_exports_twice
from raybio.methods.relation_graphs.prepare import prepare_words
from raybio.methods.sppt.synthetic.config import TopicConfig
from raybio.methods.sppt.synthetic.demo import SIMULATED_TOPICS, SentencesConfig
from raybio.methods.sppt.synthetic.prepare import prepare_topics
from raybio.methods.sppt.synthetic.simplicial import SURFACES
from raybio.methods.sppt.synthetic.system import paper_recipe
from raybio.store.demo_corpus import DemoCorpus
from raybio.training.checkpoint import CheckpointStore
from raybio.training.collective import SingleProcess
from raybio.training.loop import fit
from raybio.training.precision import Precision, embedding_precision
from raybio.training.settings import COMPLETE

KINDS = ("cliques", "plane", "moebius", "sphere", "torus", "homophily", "motif", "structural")
SENTENCE_SETS = [f"pubmed_sents_no_punkt_10k_{number}.txt.gz" for number in range(3)]
DEPTHS = (3, 5, 7, 9, 11, 12)
"""Layers that are kept of twelve, in the probe's Figures 6 and 7."""

TINY = {
    "encoder.source": "scratch",
    "encoder.num_layers": 2,
    "encoder.width": 16,
    "encoder.num_heads": 2,
    "encoder.ffn_width": 16,
    "plan.global_batch_rows": 8,
    "schedule.max_steps": 2,
    "schedule.evaluate_every_steps": 1,
    "schedule.checkpoint_every_steps": 1,
    "precision": "fp32",
}
"""Settings of ``--small``."""

DOCUMENTS = DocumentsConfig(num_entities=8, num_facts=10, num_train=40, num_dev=20, num_test=20)

SMALL_CORPORA: dict[str, tuple[DemoCorpus[Any, Any], Any]] = {
    "mtb_pretrain": (SIMULATED_DOCUMENTS, DOCUMENTS),
    "relation_finetune": (SIMULATED_DOCUMENTS, DOCUMENTS),
    "relation_graphs": (SIMULATED_WORDS, WordsConfig(num_sentences=60, num_folds=2)),
    "contrastive_probe": (SIMULATED_KNOWLEDGE, KnowledgeConfig(num_heads=8, num_tails=6)),
    "sppt_synthetic": (SIMULATED_TOPICS, SentencesConfig(num_sentences=2400, words_per_topic=12)),
}
"""Embedded corpora of ``--small``, smaller than those of the demos."""

Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training of the queue.

    Attributes:
        name: its own name.
        row: the part, and the row of its table: trainings of a row differ in seed, fold or draw.
        method: key in ``METHODS``.
        recipe: of the method.
        store: name of the store.
        settings: settings that differ from the recipe.
        encoder_of: training whose export it starts from.
        tagger: training that finds the entities where this one finds relations; may be itself.
        steps_of: training whose best epoch is its last one, and whose chosen settings it has.
    """

    name: str
    row: tuple[str, str]
    method: str
    recipe: str
    store: str
    settings: Settings = field(default_factory=dict)
    encoder_of: str | None = None
    tagger: str | None = None
    steps_of: str | None = None

    @property
    def needed_exports(self) -> set[str]:
        """Other trainings whose exports it reads."""
        return {one for one in (self.encoder_of, self.tagger) if one} - {self.name}


@dataclass(frozen=True)
class Turn:
    """What the trainings of a call share.

    Attributes:
        out: folder of results, stores, checkpoints and exports.
        data: folder of the public files; None with ``is_small``.
        encoder: folder of the pre-trained encoder; None with ``is_small``.
        deadline: Unix time at which trainings stop.
        is_small: whether this is a test of the script.
    """

    out: Path
    data: Path | None
    encoder: Path | None
    deadline: float
    is_small: bool

    @property
    def results(self) -> Path:
        return self.out / "results.jsonl"

    def export(self, name: str) -> Path:
        return self.out / "exports" / name

    def unit_scores(self, name: str) -> Path:
        return self.out / "unit_scores" / f"{name}.npz"

    @property
    def central(self) -> list[Path]:
        """Files of PubTator Central, if they are there."""
        return [] if self.data is None else sorted((self.data / "pubtator_central").glob("*.gz"))

    def is_over(self) -> bool:
        return time.time() > self.deadline


def queue(num_layers: int, *, is_small: bool) -> list[Training]:
    """Return all trainings, those of a part in the order of their needs.

    Args:
        num_layers: layers of the pre-trained encoder.
        is_small: one or two values of each setting.
    """
    depths = sorted({max(1, round(num_layers * depth / 12)) for depth in DEPTHS}, reverse=True)
    if is_small:
        return [
            *biored_queue([1.0], ["mccl"], 1),
            *ade_queue(["clner", "cldr"], 1, num_layers // 2),
            *medlama_queue(depths[:1], 1, 1),
            *graph_queue(KINDS[:1], 1),
        ]
    return [
        *biored_queue([0.01, 1.0], ["ce", "supcon", "mccl"], 5),
        *ade_queue(["clner", "cldr", "clgs", "joint"], 10, num_layers // 2),
        *medlama_queue(depths, len(SENTENCE_SETS), 3),
        *graph_queue(KINDS, 3),
    ]


def biored_queue(
    shares: Sequence[float], kinds: Sequence[str], num_seeds: int
) -> Iterator[Training]:
    yield Training(
        name="mtb",
        row=("biored", "MTB"),
        method="mtb_pretrain",
        recipe="paper_biored",
        store="corpus",
    )
    for seed in range(num_seeds):
        for share in shares:
            for kind in kinds:
                for start in (None, "mtb"):
                    yield Training(
                        name=f"biored-{kind}-{share:g}-{start or 'plain'}-{seed}",
                        row=("biored", f"{share:.0%}, {kind}, {start or 'plain'}"),
                        method="relation_finetune",
                        recipe="paper_biored",
                        store="biored",
                        settings={
                            "objective.kind": kind,
                            "data.label_fraction": share,
                            "seed": seed,
                        },
                        encoder_of=start,
                    )


def ade_queue(models: Sequence[str], num_folds: int, num_frozen: int) -> Iterator[Training]:
    for is_last in (False, True):
        suffix = ", last training" if is_last else ""
        for fold in range(1, num_folds + 1):
            for model in models:  # the tagger first: the others need it
                name = f"ade-{model}-{fold}"
                tagger = f"ade-{model if model == 'joint' else 'clner'}-{fold}"
                yield Training(
                    name=f"{name}-last" if is_last else name,
                    row=("ade", model + suffix),
                    method="relation_graphs",
                    recipe="paper_ade",
                    store="ade",
                    settings={
                        "model": model,
                        "data.fold": fold,
                        "encoder.num_frozen_layers": num_frozen,
                    },
                    tagger=f"{tagger}-last" if is_last else tagger,
                    steps_of=name if is_last else None,
                )


def medlama_queue(depths: Sequence[int], num_sets: int, num_seeds: int) -> Iterator[Training]:
    for seed in range(num_seeds):
        for sentence_set in range(num_sets):
            for depth in depths:
                yield Training(
                    name=f"medlama-{depth}-{sentence_set}-{seed}",
                    row=("medlama", f"{depth} layers"),
                    method="contrastive_probe",
                    recipe="paper_table_3",
                    store="medlama",
                    settings={
                        "encoder.num_layers_kept": depth,
                        "encoder.pooling": "mean",
                        "plan.sentence_set": sentence_set,
                        "evaluation.query_set": "both",
                        "seed": seed,
                    },
                )


def graph_queue(kinds: Sequence[str], num_draws: int) -> Iterator[Training]:
    for draw in range(num_draws):
        for kind in kinds:
            for weight in (0.0, 0.1):
                yield Training(
                    name=f"graph-{kind}-{weight:g}-{draw}",
                    row=("graphs", f"{kind}, λ = {weight:g}"),
                    method="sppt_synthetic",
                    recipe=paper_recipe(kind),
                    store="topics-20" if kind in SURFACES else "topics",
                    settings={
                        "graph.kind": kind,
                        "graph.repeat": draw,
                        "graph.sentences": "strongest",
                        "objective.lambda_spml": weight,
                    },
                )


def store_path(turn: Turn, training: Training) -> Path:
    """Return the store of a training, prepared on first use."""
    if turn.is_small:
        corpus, settings = SMALL_CORPORA[training.method]
        return corpus.prepare(turn.out / "stores", settings).path
    path = turn.out / "stores" / training.store
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    data = turn.data
    assert data is not None
    biored = {
        split: [data / "biored" / f"{split}.PubTator.gz"] for split in ("Train", "Dev", "Test")
    }
    match training.store:
        case "biored":
            prepare_documents(path, biored["Train"], biored["Dev"], biored["Test"])
        case "corpus":
            others = turn.central or sorted((data / "pubtator_ner").glob("*.gz"))
            files = [*biored["Train"], *others]
            prepare_documents(path, files, exclude=[*biored["Dev"], *biored["Test"]])
        case "ade":
            folder = data / "ade"
            prepare_words(
                path, [folder / "ade_full_spert.json.gz"], splits=folder / "cv_splits.json.gz"
            )
        case "medlama":
            files = [data / "sentences" / name for name in SENTENCE_SETS]
            prepare_sentences(path, files, data / "medlama" / "2021AA")
        case "topics":
            found = (data / "sentences").glob("*_sents*")
            prepare_topics(path, sorted(found), TopicConfig())
        case "topics-20":
            found = (data / "sentences").glob("*_sents*")
            prepare_topics(path, sorted(found), TopicConfig(num_topics=20, min_count=50))
    return path


def configuration(turn: Turn, training: Training) -> Any:
    """Return the settings of a training: its recipe, the encoder at hand, and its own."""
    method = METHODS[training.method]
    config = merge(method.config, method.recipes[training.recipe].settings)
    settings = dict(training.settings)
    if training.method != "sppt_synthetic":
        settings["encoder.source"] = str(turn.encoder)
    if training.method == "mtb_pretrain" and not turn.central:
        settings["pairs.min_documents"] = 2
    if turn.is_small:
        settings |= TINY
        if training.method == "mtb_pretrain":
            # Of the default share of so few pairs none can be retrieved.
            settings["pairs.held_out_share"] = 0.4
        if training.method == "contrastive_probe":
            settings |= {"encoder.num_layers_kept": None, "evaluation.query_set": "full"}
        if "encoder.num_frozen_layers" in settings:
            settings["encoder.num_frozen_layers"] = 0
        if training.method == "sppt_synthetic":
            settings |= {"graph.num_nodes": 40, "graph.min_share": 0.7}
    if training.encoder_of is not None:
        settings["encoder.source"] = str(turn.export(training.encoder_of))
    if training.steps_of is not None:
        before = ended(turn)[training.steps_of]
        settings |= {
            "data.train_on_validation": True,
            # Not its steps: an epoch has more of them with the validation sentences.
            "schedule.max_epochs": before["best_epoch"],
            "schedule.evaluate_every_steps": 0,
            "schedule.early_stopping_metric": None,
            "schedule.keep_best": None,
        }
        chosen = before.get("chosen", {})
        if chosen:
            settings |= {
                "evaluation.num_pair_neighbors": [chosen["num_pair_neighbors"]],
                "evaluation.num_tag_neighbors": [chosen["num_tag_neighbors"]],
                "evaluation.probe_positive_weights": [chosen["probe_positive_weight"]],
            }
    return override_all(config, settings)


def train(turn: Turn, training: Training) -> dict[str, Any] | None:
    """Train, evaluate and export; return the line of the results, None if the time was up."""
    started = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    store = store_path(turn, training)
    config = configuration(turn, training)
    method = METHODS[training.method]
    system = method.build(config, store)
    folder = turn.out / "checkpoints" / training.name
    checkpoints = CheckpointStore(folder, keep=config.schedule.keep_checkpoints)
    curve = []
    last = None
    for report in fit(
        system,
        config,
        device=device,
        checkpoints=checkpoints,
        should_stop=turn.is_over,
    ):
        last = report
        if report.metrics:
            curve.append({"step": report.step, **report.metrics})
    checkpoints.close()
    assert last is not None
    if last.reason not in COMPLETE:
        return None
    settings = config.to_mapping()
    settings.pop("precision")
    facts = {
        "method": training.method,
        "data": system.data_digest,
        "precision": last.precision,
        "torch": torch.__version__,
    }
    shared = SharedScores(turn.out / "untrained", settings, facts)
    assert system.final_evaluate is not None
    with embedding_precision(Precision(last.precision, device.type)):
        final = system.final_evaluate(system.model, SingleProcess(), shared)
    system.export(turn.export(training.name), {"name": training.name})
    turn.unit_scores(training.name).parent.mkdir(exist_ok=True)
    write_unit_scores(
        turn.unit_scores(training.name), stored_unit_scores(final.unit_scores, method.table)
    )
    best_step = last.best_step or last.step
    line = {
        "name": training.name,
        "row": training.row,
        "method": training.method,
        "recipe": training.recipe,
        "settings": dict(training.settings),
        "encoder_of": training.encoder_of,
        "status": last.reason,
        "steps": last.step,
        "best_step": best_step,
        "best_epoch": best_step / system.steps_per_epoch,
        "epochs": last.step / system.steps_per_epoch,
        "precision": last.precision,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "scores": final.scores,
        "remarks": list(final.remarks),
        "curve": curve,
    }
    if training.tagger is not None:
        pair = turn.export(training.name), turn.export(training.tagger)
        chosen, fixed = evaluate_exports_twice(*pair, store, device.type)
        line["test"] = chosen.values
        line["chosen"] = chosen.settings._asdict()
        line["test_fixed"] = None if fixed is None else fixed.values
    shutil.rmtree(folder)
    return line | {"seconds": time.perf_counter() - started}


def ended(turn: Turn) -> dict[str, dict[str, Any]]:
    """Return the results so far by name; a line that was cut off counts as none."""
    if not turn.results.exists():
        return {}
    lines = {}
    for text in turn.results.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        lines[line["name"]] = line
    return lines


def run_queue(turn: Turn, trainings: Sequence[Training], processes: int) -> int:
    """Train what has not ended, until the time is up; return the number that failed."""
    by_name = {training.name: training for training in trainings}
    waiting = unended(turn, by_name)
    # Before the processes start: two of them would prepare the same store.
    for training in {training.store: training for training in waiting}.values():
        store_path(turn, training)
    running: dict[Future[dict[str, Any] | None], Training] = {}
    num_failed = 0
    executor: Executor = InThisProcess()
    if processes > 1:
        executor = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    with executor:
        while True:
            is_over = turn.is_over()
            for training in list(waiting):
                if is_over or len(running) == processes:
                    break
                if any(num_waiting_for(one, waiting) > processes for one in running.values()):
                    break
                if is_ready(turn, training):
                    waiting.remove(training)
                    running[executor.submit(train, turn, training)] = training
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                training = running.pop(future)
                try:
                    line = future.result()
                except Exception as error:  # whatever it is, the others go on
                    num_failed += 1
                    print(json.dumps({"name": training.name, "failed": repr(error)}), flush=True)
                    continue
                if line is None:
                    print(json.dumps({"name": training.name, "stopped": True}), flush=True)
                    continue
                with turn.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line, default=float) + "\n")
                shown = {key: line[key] for key in ("name", "steps", "epochs", "seconds")}
                print(json.dumps(shown), flush=True)
    print(json.dumps({"ended": len(ended(turn).keys() & by_name.keys()), "of": len(by_name)}))
    return num_failed


def unended(turn: Turn, by_name: Mapping[str, Training]) -> list[Training]:
    """Return the trainings to do, and those whose exports these need and are not there."""
    done = ended(turn)
    needed = {name for name in by_name if name not in done}
    for name in reversed(list(by_name)):
        if name in needed:
            exports = by_name[name].needed_exports
            needed |= {one for one in exports if not turn.export(one).exists()}
    return [training for name, training in by_name.items() if name in needed]


def is_ready(turn: Turn, training: Training) -> bool:
    """Return whether what a training needs of others is there."""
    has_exports = all(turn.export(name).exists() for name in training.needed_exports)
    return has_exports and (training.steps_of is None or training.steps_of in ended(turn))


def num_waiting_for(training: Training, waiting: Sequence[Training]) -> int:
    """Return how many trainings wait for the export of one."""
    return sum(training.name in other.needed_exports for other in waiting)


class InThisProcess(Executor):
    """An executor that runs a call when it is submitted."""

    def submit(self, call: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


def table(turn: Turn) -> str:
    """Return the results as Markdown, a table for each method and split."""
    by_method: dict[str, list[dict[str, Any]]] = {}
    for line in ended(turn).values():
        by_method.setdefault(line["method"], []).append(line)
    parts = []
    for name, lines in by_method.items():
        layout = METHODS[name].table
        for split, title in layout.splits.items():
            rows = []
            for row in table_rows(turn, lines, split):
                cells = [
                    cell(row.scores, measure, *layout.scale(measure), row.units)
                    for measure in layout.measures
                ]
                rows.append([row.label, str(len(row.scores)), row.epochs, *cells])
            if rows:
                header = ["", "trainings", "epochs", *layout.measures.values()]
                parts.append(f"## {layout.title}, {title}\n\n{markdown_table(header, rows)}")
        pairs: dict[str, list[dict[str, Any]]] = {}
        for line in lines:
            if "test" in line:
                values = {measure: {"value": value} for measure, value in line["test"].items()}
                pairs.setdefault(line["row"][1], []).append(values)
        if pairs:
            measures = [*layout.measures, "re_legacy_f1"]
            rows = [
                [row, str(len(scores)), *(cell(scores, measure, 100, 2) for measure in measures)]
                for row, scores in pairs.items()
            ]
            header = ["", "folds", *layout.measures.values(), "RE, legacy"]
            parts.append(
                f"## Test sentences, entities of CLNER, chosen settings\n\n{markdown_table(header, rows)}"
            )
    return "\n\n".join(parts)


@dataclass
class Row:
    """A row of a table.

    Attributes:
        label: of its trainings, and the stage if they are not trained.
        epochs: trained and published ones; empty for what needs no training.
        scores: of each training: measure -> score.
        units: scores of units of the trainings that have them.
    """

    label: str
    epochs: str = ""
    scores: list[dict[str, Any]] = field(default_factory=list)
    units: list[UnitScores] = field(default_factory=list)


def table_rows(turn: Turn, lines: Sequence[Mapping[str, Any]], split: str) -> Iterable[Row]:
    """Return the rows of a table; each row of trainings follows what needs none, on its own data and encoder."""
    rows: dict[str, Row] = {}
    for line in lines:
        units = read_unit_scores(turn.unit_scores(line["name"]))
        for stage, by_split in line["scores"].items():
            if split not in by_split:
                continue
            is_trained = stage == "trained"
            label = line["row"][1] if is_trained else f"{line['row'][1]}: {stage}"
            row = rows.setdefault(label, Row(label))
            row.scores.append(by_split[split])
            if split in units.get(stage, {}):
                row.units.append(units[stage][split])
            if is_trained and not row.epochs:
                same = [one for one in lines if one["row"] == line["row"]]
                row.epochs = epochs(same)
    return rows.values()


def epochs(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the epochs of trainings, least to most, next to the published ones."""
    trained = sorted(line["epochs"] for line in lines)
    text = f"{trained[0]:.3g}"
    if f"{trained[-1]:.3g}" != text:
        text += f" to {trained[-1]:.3g}"
    recipe = METHODS[lines[0]["method"]].recipes[lines[0]["recipe"]]
    published = recipe.settings["schedule"].get("max_epochs")
    if published is not None:
        text += f" of {published:g}"
    num_stopped = sum(line["status"] == "early_stopping" for line in lines)
    return f"{text}, {num_stopped} stopped by validation" if num_stopped else text


def cell(
    scores: Sequence[Mapping[str, Any]],
    measure: str,
    scale: float,
    digits: int,
    units: Sequence[UnitScores] = (),
) -> str:
    """Return mean ± sample standard deviation, and the 95 % interval where all have equal units."""
    values = [scale * one[measure]["value"] for one in scores if measure in one]
    if not values:
        return ""
    text = f"{np.mean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {np.std(values, ddof=1):.{digits}f}"
    has_units = len(units) == len(values) and all(
        measure in one.value_by_measure and np.array_equal(one.unit_U, units[0].unit_U)
        for one in units
    )
    if has_units:
        interval = interval_over_runs([value / scale for value in values], units, measure)
        if np.isfinite(interval.low):
            text += f" [{scale * interval.low:.{digits}f}, {scale * interval.high:.{digits}f}]"
    return text


def main() -> None:
    arguments = parsed()
    turn = Turn(
        out=arguments.out,
        data=arguments.data,
        encoder=arguments.encoder,
        deadline=time.time() + 60 * arguments.minutes,
        is_small=arguments.small,
    )
    if arguments.table:
        print(table(turn))
        return
    num_layers = 2
    if not arguments.small:
        if arguments.data is None or arguments.encoder is None:
            sys.exit("want --data and --encoder; --small needs neither")
        settings = json.loads((arguments.encoder / "config.json").read_text(encoding="utf-8"))
        num_layers = settings["num_hidden_layers"]
    disable_progress_bar()
    turn.out.mkdir(parents=True, exist_ok=True)
    trainings = queue(num_layers, is_small=arguments.small)
    parts = list(dict.fromkeys(training.row[0] for training in trainings))
    chosen = arguments.only.split(",") if arguments.only else parts
    if unknown := set(chosen) - set(parts):
        sys.exit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    chosen_trainings = [training for training in trainings if training.row[0] in chosen]
    sys.exit(1 if run_queue(turn, chosen_trainings, arguments.processes) else 0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of results and files")
    parser.add_argument("--data", type=Path, help="folder of the public files")
    parser.add_argument("--encoder", type=Path, help="folder of the pre-trained text encoder")
    parser.add_argument("--minutes", type=float, default=25, help="time of this call")
    parser.add_argument("--processes", type=int, default=1, help="trainings at a time")
    parser.add_argument("--only", help="parts to run, separated by commas")
    parser.add_argument("--small", action="store_true", help="tiny sizes, on any machine")
    parser.add_argument("--table", action="store_true", help="print the results as Markdown")
    return parser.parse_args()


if __name__ == "__main__":
    main()
