"""Stores, runs and exports of each version: one a kind and a method; a sweep, an embedding and an
index.

    python -m tests.golden_records record    write tests/golden/VERSION, before that is released
    python -m tests.golden_records check     read all versions, and continue the half-trained runs

A version of raybio that cannot read an older one's files cannot continue its users' work. So the
folder of a released version is never recorded again. ``formats.json`` in it has the versions of all
formats. ``test_golden_records.py`` checks the folders too.
"""

import gzip
import json
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq
import torch

import raybio
from raybio.core.config import override_all, present_path
from raybio.core.records import FORMATS, read_record, write_record
from raybio.core.version import VERSION, arithmetic_versions
from raybio.methods import METHODS, method_named, present_name
from raybio.methods.biostransformers.collector import ArticleCollector
from raybio.methods.biostransformers.config import ArticleConfig
from raybio.methods.biostransformers.formats.tables import Article, to_batch
from raybio.methods.contrastive_probe.demo import SIMULATED_KNOWLEDGE, KnowledgeConfig
from raybio.methods.mtb_mccl.documents.demo import DocumentsConfig, write_documents
from raybio.methods.mtb_mccl.documents.prepare import prepare_documents
from raybio.methods.relation_graphs.demo import WordsConfig, write_words
from raybio.methods.relation_graphs.prepare import prepare_words
from raybio.methods.sppt.articles.demo import SIMULATED_CITATIONS, CitationsConfig
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.downstream.demo import SIMULATED_FOLDS, FoldsConfig
from raybio.methods.sppt.model_links import evaluate_model_links
from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.synthetic.demo import SIMULATED_TOPICS, SentencesConfig
from raybio.runtime.embed import EmbedSummary, embed_file
from raybio.runtime.embed_parts import Parts
from raybio.runtime.model_folders import embedder_of_folder, model_of_folder
from raybio.runtime.model_paths import local_model
from raybio.runtime.run import run_loop
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.run.result import finished_result, summarize
from raybio.runtime.run.spec import Compute, RunSpec
from raybio.runtime.search.build import build_index
from raybio.runtime.tune.driver import sweep
from raybio.runtime.tune.trial import ENDED, TRIAL_RECORD, TRIALS, SweepSpec
from raybio.store.manifest import SCHEMA_VERSION
from raybio.store.store import open_store
from raybio.store.writer import Draft
from raybio.training.checkpoint import step_of_checkpoint
from raybio.training.checkpoint_files import FORMAT_VERSION
from raybio.training.settings import TrainingConfig
from tests.arithmetic import arithmetic_digest
from tests.conftest import write_tables
from tests.golden import differences
from tests.methods.conformance_cases import CASES
from tests.paths import ROOT
from tests.runtime.tune.sweep_folder import LAMBDA, space_of
from tests.whole_runs import train_here

GOLDEN = ROOT / "tests" / "golden"
PRESENT = GOLDEN / VERSION
"""The folder that ``record`` writes. Run records in it may name the store by a former path."""
FOLDERS = sorted(path for path in GOLDEN.iterdir() if path.is_dir())
"""The folder of each version; every function here that reads one takes it as ``golden``."""
SMALLER = {
    "encoder.num_layers": 1,
    "encoder.width": 8,
    "encoder.ffn_width": 16,
    "optim.schedule": "constant",
    "schedule.max_steps": 6,
    "schedule.keep_checkpoints": 1,
}
HALF = 2
"""Step at which the half-trained runs were stopped; they end at the next one."""


def make_proteins(folder: Path) -> Path:
    """Return a store of proteins."""
    tables = write_tables(folder / "raw", num_groups=2, rows_per_group=16)
    return prepare_proteins(folder / "store", tables, PrepareConfig(heldout_share=0.1)).path


def make_citations(folder: Path) -> Path:
    """Return a store of articles that cite each other."""
    return SIMULATED_CITATIONS.prepare(
        folder,
        CitationsConfig(
            num_articles=64, num_schools=8, num_fields=6, words_per_field=8, words_per_article=4
        ),
    ).path


def make_topics(folder: Path) -> Path:
    """Return a store of sentences with topics."""
    config = SentencesConfig(num_sentences=700, num_topics=14, words_per_topic=12)
    return SIMULATED_TOPICS.prepare(folder, config).path


def make_task(folder: Path) -> Path:
    """Return a store of a downstream task."""
    return SIMULATED_FOLDS.prepare(
        folder, FoldsConfig(num_folds=3, families_per_fold=3, divergence=0.0)
    ).path


def make_articles(folder: Path) -> Path:
    """Return a store of articles with MeSH terms."""
    articles = [
        Article(pmid, f"word{pmid % 7}a", f"word{pmid % 5}b", [f"Name {'abcdefghi'[pmid % 9]}"])
        for pmid in range(1, 61)
    ]
    with Draft(folder / "store") as draft:
        collector = ArticleCollector(draft.folder)
        collector.add(to_batch(articles))
        return collector.commit(draft, ArticleConfig(validation_share=0.2), {"parameters": {}}).path


def make_sentences(folder: Path) -> Path:
    """Return a store of sentences with a probing benchmark."""
    config = KnowledgeConfig(num_heads=8, num_tails=6, sentences_per_fact=2)
    return SIMULATED_KNOWLEDGE.prepare(folder, config).path


def make_documents(folder: Path) -> Path:
    """Return a store of documents with entity pairs."""
    sizes = DocumentsConfig(
        num_entities=6,
        num_facts=8,
        num_train=24,
        num_dev=1,
        num_test=1,
        facts_per_document=2,
        co_mentions=2,
    )
    train, _, _ = write_documents(folder / "raw", sizes)
    text = gzip.decompress(train.read_bytes()).decode()
    others = []
    for number, split in ((1000, "dev"), (2000, "test")):
        path = folder / f"{split}.PubTator"
        path.write_text(re.sub(r"^(?=[0-9])", str(number), text, flags=re.MULTILINE))
        others.append(path)
    store = prepare_documents(
        folder / "store", [train], others[:1], others[1:], min_type_pair_relations=1
    )
    return store.path


def make_words(folder: Path) -> Path:
    """Return a store of sentences with entities and relations."""
    sizes = WordsConfig(num_sentences=24, num_drugs=6, num_effects=6)
    sentences, _ = write_words(folder / "raw", sizes)
    dev = Path(shutil.copy(sentences, folder / "dev.json.gz"))
    test = Path(shutil.copy(sentences, folder / "test.json.gz"))
    return prepare_words(folder / "store", [sentences], dev=[dev], test=[test]).path


STORES: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "tiny_store": ("proteins", make_proteins),
    "tiny_citations": ("citations", make_citations),
    "tiny_topics": ("topics", make_topics),
    "tiny_task": ("task", make_task),
    "tiny_articles": ("articles", make_articles),
    "tiny_sentences": ("sentences", make_sentences),
    "tiny_documents": ("documents", make_documents),
    "tiny_words": ("words", make_words),
}
"""Store of a case in ``CASES`` -> name of its recorded folder, and what makes it."""


PROTEINS = ["MKTAYIAKQR", "MVLSPADK"]
TEXTS = ["word1a word2b of patients.", "supo is associated with dicetebi"]
SENTENCES = ["We report that panmer led to bolbe and naca.", "nanive caused by golpolvipo"]


def document() -> dict[str, Any]:
    """Return a document of BioC JSON whose relations the recorded model finds."""
    text = (
        "notably samples with cafolmi were compared with nanive. during follow up nanive binds "
        "mergolgalo directly. in most patients cafolmi was relieved by mergolgalo."
    )
    entities = {
        "cafolmi": {"type": "Disease", "identifier": "D000004"},
        "nanive": {"type": "Gene", "identifier": "5"},
        "mergolgalo": {"type": "Chemical", "identifier": "C000006"},
    }
    annotations = [
        {"text": name, "infons": infons, "locations": [{"offset": start, "length": len(name)}]}
        for name, infons in entities.items()
        for start in (mention.start() for mention in re.finditer(name, text))
    ]
    passage = {"offset": 0, "text": text, "annotations": annotations}
    return {"id": "2", "passages": [passage]}


PROTEIN_METHOD = "sppt_protein"
"""Method of the sweep; its export and its store make the embedding and the index."""
ROWS_PER_PART = 16
NUM_NEIGHBORS = 3

INPUTS_OF_HEAD: dict[str, list[Any]] = {
    "finetune": PROTEINS,
    "relation_finetune": [document()],
    "relation_graphs": SENTENCES,
}
"""Method with a head -> what it predicts for."""


def formats() -> dict[str, Any]:
    """Return the versions of all formats on disk."""
    records = {kind: present.version for kind, present in FORMATS.items()}
    return {"records": records, "store": SCHEMA_VERSION, "checkpoint": FORMAT_VERSION}


def recorded_methods(golden: Path) -> list[str]:
    """Return the methods of a version."""
    return sorted(path.name for path in (golden / "finished").iterdir())


def store_of(method: str, golden: Path = PRESENT) -> Path:
    """Return the path of the recorded store of a method."""
    return golden / "stores" / STORES[CASES[method].store][0]


def config_of(method: str) -> TrainingConfig:
    """Return the configuration of the runs of a method that are recorded."""
    return override_all(method_named(method).config(), CASES[method].settings | SMALLER)


def recorded_config(folder: RunFolder) -> TrainingConfig:
    """Return the configuration of a recorded run; defaults may have changed since."""
    identity = folder.read_identity() or {}
    return method_named(folder.name).config.from_mapping(identity["config"])


def train_method(
    method: str, runs: Path, name: str, *, golden: Path = PRESENT, stop_at: int | None = None
) -> RunFolder:
    """Train a run, or continue it, in this process and without tracking; return its folder.

    Args:
        method: key in ``METHODS``; its recorded store is used.
        runs: folder of runs.
        name: the run's name.
        golden: the folder of a version.
        stop_at: step after which the run is stopped; None: its last one.
    """
    folder = RunFolder(runs, name)
    config = config_of(method) if folder.max_steps is None else recorded_config(folder)
    recorded = store_of(method, golden)
    # Methods save what they derive in the folder of a store.
    store = runs / f"store of {name}"
    shutil.copytree(recorded, store, dirs_exist_ok=True)
    folder = RunFolder(runs, name)
    digest = open_store(store).digest
    folder.open(present_name(method), config, recorded.relative_to(ROOT), digest, ())
    request = RunSpec(
        method=present_name(method),
        config=config,
        store=store,
        name=name,
        runs=runs,
        compute=Compute(threads_per_worker=1, device="cpu"),
    )
    launch = request.compute.to_record() | {
        "versions": arithmetic_versions(),
        "tracking": request.tracking,
        "is_length_accepted": request.accepts_long_run,
    }
    write_record(folder.launch, "launch", launch)
    folder.record_precision("fp32")
    outcome = train_here(request, stop_at=stop_at)
    summary = summarize(folder, request.config, outcome["status"], None)
    write_record(folder.result, "result", summary | {"checkpoint": None})
    return folder


def record() -> None:
    """Write all files of the present version anew."""
    shutil.rmtree(PRESENT, ignore_errors=True)
    # The stop file is looked at after every step.
    run_loop.STOP_POLL_SECONDS = 0.0
    with tempfile.TemporaryDirectory() as place:
        for name, make in STORES.values():
            shutil.copytree(make(Path(place) / name), PRESENT / "stores" / name)
        for method in METHODS:
            for kind, stop_at in (("finished", None), ("half", HALF)):
                folder = train_method(method, Path(place) / kind, method, stop_at=stop_at)
                step = step_of_checkpoint(folder.newest_checkpoint)
                assert kind == "finished" or step == HALF + 1, f"{method}: stopped at step {step}"
                keep = [folder.identity, folder.launch, folder.config, folder.metrics]
                if kind == "finished":
                    keep += [folder.outcome, folder.result, folder.unit_scores]
                target = PRESENT / kind / method
                target.mkdir(parents=True)
                for path in keep:
                    shutil.copy(path, target)
                if kind == "half":
                    shutil.copytree(folder.checkpoints, target / "checkpoints")
                else:
                    record_export(method, folder.export)
            print(f"{method}: recorded", flush=True)
        record_sweep(Path(place))
        record_embedding_and_index(Path(place))
    (PRESENT / "arithmetic.txt").write_text(arithmetic_digest() + "\n")
    (PRESENT / "formats.json").write_text(json.dumps(formats(), indent=1) + "\n")
    sizes = [path.stat().st_size for path in PRESENT.rglob("*") if path.is_file()]
    print(f"{len(sizes)} files, {sum(sizes):,} bytes")


def record_export(method: str, export: Path) -> None:
    """Write the export of a method's finished run, and what the model gives for some inputs."""
    target = PRESENT / "exports" / method
    # Its card names modules.
    shutil.copytree(export, target / "export", ignore=shutil.ignore_patterns("README.md"))
    inputs = {"encode": PROTEINS if (export / "protein.json").exists() else TEXTS}
    if method in INPUTS_OF_HEAD:
        inputs["predict"] = INPUTS_OF_HEAD[method]
    record = {"inputs": inputs, "outputs": outputs_of(target / "export", inputs)}
    (target / "outputs.json").write_text(json.dumps(record, indent=1) + "\n")


def outputs_of(export: Path, inputs: dict[str, list[Any]]) -> dict[str, Any]:
    """Return what methods of a loaded model give for their inputs, as plain JSON."""
    model = raybio.load(export)
    assert model.has_head == ("predict" in inputs)
    outputs = {"encode": model.encode(inputs["encode"]).tolist()}
    if "predict" in inputs:
        outputs["predict"] = model.predict(inputs["predict"])
    return json.loads(json.dumps(outputs))


def sweep_spec(folder: Path, golden: Path = PRESENT) -> SweepSpec:
    """Return a sweep of two trials, whose search space and files are in ``folder``."""
    space = space_of(
        folder,
        budget={"num_trials": 2, "max_steps": 4, "grace_steps": 2, "max_concurrent_trials": 1},
        scheduler={"kind": "none"},
        search={"kind": "grid"},
        space={LAMBDA: {"choice": [0.0, 0.5]}},
    )
    run = RunSpec(
        method=present_name(PROTEIN_METHOD),
        config=config_of(PROTEIN_METHOD),
        store=store_of(PROTEIN_METHOD, golden),
        name="sweep",
        runs=folder / "sweeps",
        compute=Compute(cpus_per_worker=1),
    )
    return SweepSpec(space=space, run=run)


def record_sweep(place: Path) -> None:
    """Write what a resumed sweep reads of a finished one and its trials."""
    swept = sweep(sweep_spec(place))
    swept.check_finished()
    folder = swept.folder
    paths = [folder.identity, folder.launch, folder.result, folder.path / TRIALS]
    for name in (TRIAL_RECORD, ENDED, folder.launch.name, folder.metrics.name):
        paths += folder.path.glob(f"trials/*/{name}")
    for path in paths:
        target = PRESENT / "sweep" / path.relative_to(folder.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    # A sweep keeps the absolute path of its store.
    identity = read_record(folder.identity, "run") or {}
    store = str(store_of(PROTEIN_METHOD).relative_to(ROOT))
    write_record(PRESENT / "sweep" / folder.identity.name, "run", identity | {"store": store})


def check_sweep(folder: Path, golden: Path) -> None:
    """Resume a copy of the recorded sweep: no trial trains again, and the result is the same.

    The copy lacks a setting, as if the sweep were older than that.
    """
    spec = sweep_spec(folder, golden)
    shutil.copytree(golden / "sweep", spec.path)
    identity = read_record(spec.run.folder.identity, "run") or {}
    del identity["config"]["base"]["evaluation"]["max_neighbors"]
    write_record(spec.run.folder.identity, "run", identity)
    swept = sweep(spec)
    assert len(swept.trials) == 2
    recorded = RunFolder(golden, "sweep")
    result = json.dumps(read_record(recorded.result, "result"))
    result = result.replace(LAMBDA, present_path(type(spec.run.config), LAMBDA))
    assert read_record(swept.folder.result, "result") == json.loads(result)
    for trial in swept.trials:
        metrics = f"trials/{trial.name}/{recorded.metrics.name}"
        assert (spec.path / metrics).read_bytes() == (recorded.path / metrics).read_bytes()


def embed_proteins(out: Path, golden: Path = PRESENT) -> EmbedSummary:
    """Embed the recorded store of proteins by the recorded export, or continue to do so."""
    export = golden / "exports" / PROTEIN_METHOD / "export"
    store = store_of(PROTEIN_METHOD, golden)
    return embed_file(embedder_of_folder(export), store, out, rows_per_part=ROWS_PER_PART)


def record_embedding_and_index(place: Path) -> None:
    """Write the parts of an embedding, an index of it, and what is found in that."""
    out = place / "embeddings.parquet"
    with patch.object(Parts, "delete"):  # Parts stay where a command is killed.
        embed_proteins(out)
    shutil.copytree(f"{out}.parts", PRESENT / "embedding")
    build_index(out, PRESENT / "index" / "store")
    record = {"inputs": PROTEINS, "neighbors": neighbors_of(PROTEINS)}
    (PRESENT / "index" / "neighbors.json").write_text(json.dumps(record, indent=1) + "\n")


def check_embedding(folder: Path, golden: Path) -> None:
    """Finish a copy of the recorded embedding, of which no part is embedded again."""
    out = folder / "embeddings.parquet"
    shutil.copytree(golden / "embedding", f"{out}.parts")
    summary = embed_proteins(out, golden)
    assert summary.num_parts == summary.num_parts_found == 2
    store = open_store(store_of(PROTEIN_METHOD, golden), method_named(PROTEIN_METHOD).store)
    keys, contents = store.inputs("sequence", 0, store.num_rows)
    table = pq.read_table(out)
    assert table.column("key").to_pylist() == keys.to_pylist()
    model = raybio.load(golden / "exports" / PROTEIN_METHOD / "export")
    expected = model.encode([content.decode() for content in contents.to_pylist()])
    embedded = np.array(table.column("embedding").to_pylist())
    np.testing.assert_allclose(embedded, expected, rtol=1e-5, atol=1e-6)


def neighbors_of(inputs: list[str], golden: Path = PRESENT) -> dict[str, Any]:
    """Return what the recorded index has near some inputs, as plain JSON."""
    index = raybio.open_index(
        golden / "index" / "store", model=golden / "exports" / PROTEIN_METHOD / "export"
    )
    found = index.search(inputs, k=NUM_NEIGHBORS)
    return {"keys": found.keys, "scores": found.scores.tolist()}


def check_index(golden: Path) -> None:
    """Search in the recorded index; it finds what is recorded."""
    record = json.loads((golden / "index" / "neighbors.json").read_text())
    found = neighbors_of(record["inputs"], golden)
    assert list(differences(record["neighbors"], found, tolerance=1e-5)) == []


def check_export(method: str, golden: Path) -> None:
    """Load the recorded export of a method; it embeds and predicts as recorded."""
    folder = golden / "exports" / method
    record = json.loads((folder / "outputs.json").read_text())
    outputs = outputs_of(folder / "export", record["inputs"])
    expected = record["outputs"]
    np.testing.assert_allclose(outputs["encode"], expected["encode"], rtol=1e-5, atol=1e-6)
    predictions = [expected.get("predict"), outputs.get("predict")]
    assert list(differences(*predictions, tolerance=1e-5)) == [], method


def check_store(method: str, golden: Path) -> None:
    """Open and verify the recorded store of a method."""
    open_store(store_of(method, golden), method_named(method).store, verify=True)


def check_finished(method: str, golden: Path) -> None:
    """Read the recorded finished run of a method as a run that needs no more training."""
    folder = RunFolder(golden / "finished", method)
    result = finished_result(folder, recorded_config(folder))
    assert result is not None, f"{folder.path}: is not said to be finished"
    assert result.step == folder.max_steps


def check_evaluation(folder: Path, golden: Path) -> None:
    """Evaluate a copy of the recorded run of proteins, as ``raybio evaluate links`` does.

    It has the scores that its own final evaluation had.
    """
    run = RunFolder(folder, PROTEIN_METHOD)
    shutil.copytree(golden / "finished" / PROTEIN_METHOD, run.path)
    shutil.copytree(golden / "exports" / PROTEIN_METHOD / "export", run.export)
    model = model_of_folder(local_model(str(run.path), "--model"))
    report = evaluate_model_links({"run": model}, store_of(PROTEIN_METHOD, golden))
    recorded = (read_record(run.result, "result") or {})["final"]["scores"]
    scores = json.loads(json.dumps(report.to_json()))["scores"]
    for row in ("trained", "initial", "random"):
        assert list(differences(recorded[row], scores[row], row, tolerance=1e-5)) == []


def check_half(method: str, runs: Path, golden: Path) -> None:
    """Continue the recorded half-trained run of a method to its end, in a copy inside ``runs``.

    It has the losses of the run that was never stopped, to 5 %, and on a machine with the same
    arithmetic that run's weights.
    """
    shutil.copytree(golden / "half" / method, runs / method)
    folder = train_method(method, runs, method, golden=golden)
    outcome = read_record(folder.outcome, "outcome") or {}
    finished = read_record(golden / "finished" / method / "outcome.json", "outcome") or {}
    assert (outcome["status"], outcome["step"]) == (finished["status"], finished["step"])
    loss_by_step = losses_of(folder)
    expected_by_step = losses_of(RunFolder(golden / "finished", method))
    assert max(loss_by_step) > HALF and loss_by_step.keys() == expected_by_step.keys()
    for step, loss in loss_by_step.items():
        assert math.isclose(loss, expected_by_step[step], rel_tol=0.05), f"{method}: step {step}"
    if arithmetic_digest() == arithmetic_of_record(golden):
        assert outcome["weights_sha256"] == finished["weights_sha256"], method


def losses_of(folder: RunFolder) -> dict[int, float]:
    """Return step -> training loss."""
    metrics_by_step = {report["step"]: report["metrics"] for report in read_reports(folder.metrics)}
    return {step: metrics["loss"] for step, metrics in metrics_by_step.items() if "loss" in metrics}


def arithmetic_of_record(golden: Path) -> str:
    """Return the arithmetic of the machine on which the files were recorded."""
    return (golden / "arithmetic.txt").read_text().strip()


def check() -> None:
    """Check all files of all versions, and print what was checked."""
    for golden in FOLDERS:
        for method in recorded_methods(golden):
            check_store(method, golden)
            check_finished(method, golden)
            check_export(method, golden)
            with tempfile.TemporaryDirectory() as runs:
                check_half(method, Path(runs), golden)
            print(f"{golden.name}: {method}: store, runs and export are read", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            check_sweep(Path(folder), golden)
            check_embedding(Path(folder), golden)
            check_evaluation(Path(folder), golden)
        check_index(golden)
        print(f"{golden.name}: sweep, embedding and index are read")


if __name__ == "__main__":
    torch.set_num_threads(1)
    commands = {"record": record, "check": check}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]]()
