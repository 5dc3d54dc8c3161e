"""Commands with stores and source files in a bucket give what they give with local ones."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import raybio
from raybio.cli.contrastive_probe.train import prepare_given_store
from raybio.cli.finetune import with_tasks
from raybio.cli.main import main
from raybio.core.config import override_all
from raybio.core.digest import weights_digest
from raybio.core.location import BucketPath
from raybio.encoders.checkpoints import check_source, model_names
from raybio.encoders.sources import source_record
from raybio.methods import METHODS
from raybio.methods.biostransformers.store import ArticleStore
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mtb import recurring_pairs as entity_pairs
from raybio.methods.mtb_mccl.mtb.config import EntityPairConfig
from raybio.methods.mtb_mccl.mtb.recurring_pairs import recurring_pairs
from raybio.methods.sppt.proteins.demo import SimulationConfig, write_tree_of_life
from raybio.runtime.model_folders import model_of_folder
from raybio.runtime.model_paths import model_source
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.options import RunOptions, resolve
from raybio.store.bucket import BucketFolder
from raybio.store.remote_store import upload_store
from raybio.store.store import Store, open_store
from raybio.training.loop import fit
from tests.conftest import write_tables
from tests.experiments.test_given_task import write as write_task
from tests.methods.conformance_cases import tiny_config
from tests.methods.known_answers import write_benchmark
from tests.methods.sppt.articles.test_formats import write_mag
from tests.s3 import ENVIRONMENT, S3


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def prepare(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["raybio", "prepare", "proteins", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0


def test_a_store_prepared_in_a_bucket_has_the_digest_of_a_local_one(
    tmp_path: Path,
    bucket: BucketPath,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    write_tables(tmp_path / "raw", num_groups=2, rows_per_group=16)
    # A record that is skipped is named by its file, in the manifest too.
    with (tmp_path / "raw" / "proteins.tsv").open("a") as file:
        file.write("bad\t1\tA1C\n")
    for name in ("proteins.tsv", "edges.tsv"):
        BucketFolder(bucket / "raw").upload(tmp_path / "raw" / name, name)
    local = ["--edges", "raw/edg*.tsv", "--proteins", "raw/proteins.tsv", "--out", "store"]
    prepare(monkeypatch, *local)
    uris = [f"{bucket}/raw/edg*.tsv", f"{bucket}/raw/proteins.tsv", f"{bucket}/store"]
    prepare(monkeypatch, "--edges", uris[0], "--proteins", uris[1], "--out", uris[2])
    written = capfd.readouterr()
    assert open_store(uris[2]).digest == open_store("store").digest
    assert uris[2] in written.out.replace("\n", "")
    assert ENVIRONMENT["AWS_SECRET_ACCESS_KEY"] not in written.out + written.err


def test_a_folder_of_sources_in_a_bucket_gives_the_store_of_a_local_one(
    tmp_path: Path, bucket: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = tmp_path / "raw"
    config = SimulationConfig(num_species=2, num_proteins=40, num_links=80, num_families=4)
    write_tree_of_life(raw, config, one_fasta=True)
    for path in raw.rglob("*.*"):
        BucketFolder(bucket / "raw").upload(path, path.relative_to(raw).as_posix())
    for folder, out in ((str(raw), "store"), (f"{bucket}/raw", "fetched")):
        sources = ["--interactomes", f"{folder}/interactomes"]
        sources += ["--species", f"{folder}/treeoflife.species.tsv"]
        sources += ["--sequences", f"{folder}/protein.sequences.fa"]
        prepare(monkeypatch, *sources, "--out", out)
    assert open_store("fetched").digest == open_store("store").digest


def test_a_run_over_a_store_in_a_bucket_is_the_run_over_the_local_store(
    tmp_path: Path, bucket: BucketPath, tiny_store: Store, tiny_settings: dict[str, object]
) -> None:
    upload_store(tiny_store.path, bucket / "store", force=False)
    settings = tiny_settings | {"schedule.max_steps": 3, "schedule.evaluate_every_steps": 0}
    settings |= {"schedule.checkpoint_every_steps": 3, "schedule.keep_best": None}
    digests = []
    specs = []
    for number, store in enumerate((tiny_store.path, bucket / "store")):
        options = RunOptions(store=store, runs=tmp_path / "runs", name=f"run{number}")
        spec = resolve("sppt_protein", options)
        config = override_all(spec.config, settings)
        system = METHODS["sppt_protein"].build(config, spec.store)
        list(fit(system, config))
        digests.append(weights_digest(system.model.state_dict().items()))
        specs.append(spec)
    assert digests[0] == digests[1]
    assert str(specs[1].store) == f"{bucket}/store"
    folder = specs[1].folder
    folder.open("sppt_protein", specs[1].config, specs[1].store, tiny_store.digest, ())
    record = json.loads(folder.identity.read_text())
    assert f"{bucket}/store" in json.dumps(record)
    # The same name without options continues with the store that the run has.
    again = resolve("sppt_protein", RunOptions(runs=tmp_path / "runs", name="run1"))
    assert again.store == bucket / "store"
    assert again.config == specs[1].config


def test_a_model_in_a_bucket_is_the_local_model_under_the_name_of_its_run(
    tmp_path: Path, bucket: BucketPath, tiny_articles: ArticleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("biostransformers")
    system = METHODS["biostransformers"].build(config, tiny_articles.path)
    run = RunFolder(tmp_path / "runs", "tiny")
    run.open("biostransformers", config, tiny_articles.path, system.data_digest, ())
    export = system.export(run.export, {})
    address = bucket / "runs" / "tiny"
    for file in (run.identity, *(path for path in export.rglob("*") if path.is_file())):
        BucketFolder(address).upload(file, file.relative_to(run.path).as_posix())
    record = {"QUESTION": "word1a?", "CONTEXTS": ["word2a"], "LONG_ANSWER": "word3b"}
    queries = {str(pmid): record for pmid in [*tiny_articles.pmid_N[:20].tolist(), 5000]}
    (tmp_path / "ori_pqal.json").write_text(json.dumps(queries))
    reports = []
    for number, model in enumerate((run.path, address, address / "export")):
        arguments = ["--model", str(model), "--data", ".", "--tasks", "pubmedqa-contexts"]
        arguments += ["--out", f"report{number}"]
        monkeypatch.setattr(sys, "argv", ["raybio", "evaluate", "zero-shot", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        report = json.loads((tmp_path / f"report{number}" / "report.json").read_text())
        del report["checksum"]  # of a text with the address
        # Reports say the address, not where the copy lies.
        text = json.dumps(report)
        assert str(tmp_path / "cache") not in text
        assert str(model) in text
        reports.append(text.replace(str(model), "MODEL"))
    # The record next to the model says on which of the articles it was trained.
    assert '"num_trained_on"' in reports[0]
    assert reports[0] == reports[1] == reports[2]
    # Encoders read it by its address as well.
    source = model_source(str(address), "--model")
    assert source == f"{address}/export"
    assert list(model_names([source])) == list(model_names([str(export)])) == ["tiny"]
    digest = model_of_folder(export).digest()
    assert raybio.load(str(address)).digest() == digest
    assert record_of_weights(source) == record_of_weights(str(export))


def upload(folder: Path, target: BucketPath) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            BucketFolder(target).upload(path, path.relative_to(folder).as_posix())


def test_a_folder_with_folders_gives_the_store_of_a_local_one_and_only_what_is_read_is_fetched(
    tmp_path: Path, bucket: BucketPath, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    mag = write_mag(tmp_path / "ogbn_mag", ["900", "17", "33"], ["0,1", "2,1"])
    (mag / "raw" / "features.bin").write_bytes(b"not read")
    (tmp_path / "abstracts.csv").write_text("ent idx,abstract\n0,one\n1,two\n2,three\n")
    upload(mag, bucket / "ogbn_mag")
    for folder, out in ((str(mag), "store"), (f"{bucket}/ogbn_mag", "fetched")):
        arguments = ["--mag", folder, "--abstracts", "abstracts.csv", "--out", out]
        arguments += ["--heldout-share", "0"]
        monkeypatch.setattr(sys, "argv", ["raybio", "prepare", "articles", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
    assert open_store("fetched").digest == open_store("store").digest
    assert not [
        request for request in s3.requests if request.method == "GET" and "bin" in request.path
    ]


def test_sources_of_trainings_in_a_bucket_are_the_store_of_local_ones(
    tmp_path: Path, bucket: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    (tmp_path / "data").mkdir()
    write_task(tmp_path / "data")
    (tmp_path / "sentences.txt").write_text("Aspirin may treat pain.\nIt is so.\n")
    write_benchmark(tmp_path / "medlama")
    upload(tmp_path / "data", bucket / "data")
    upload(tmp_path / "medlama", bucket / "medlama")
    BucketFolder(bucket).upload(tmp_path / "sentences.txt", "sentences.txt")
    stores = []
    for root in (str(tmp_path), str(bucket)):
        parts = with_tasks(["acl_arc", "--data", f"{root}/data"]).parts
        sources = ["--sentences", f"{root}/sentences.txt", "--benchmark", f"{root}/medlama"]
        stores.append([str(parts["acl_arc"].store), *prepare_given_store(sources)])
    assert stores[0] == stores[1]


def test_a_pattern_of_sentences_in_a_bucket_is_each_file_that_matches(
    tmp_path: Path, bucket: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"Aspirin may treat {name}.\nIt is so.\n")
        BucketFolder(bucket).upload(tmp_path / name, f"sentences/{name}")
    assert prepare_given_store(["--sentences", f"{bucket}/sentences/*.txt"]) == (
        prepare_given_store(["--sentences", f"{tmp_path}/*.txt"])
    )


def test_pairs_that_were_counted_in_a_bucket_are_read_by_every_node(
    tmp_path: Path,
    bucket: BucketPath,
    tiny_documents: DocumentStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = EntityPairConfig(min_documents=2, num_pairs=50)
    here = asdict(recurring_pairs(tiny_documents, config))
    upload_store(tiny_documents.path, bucket / "store", force=False)
    arguments = ["--store", f"{bucket}/store", "--min-documents", "2", "--num-pairs", "50"]
    monkeypatch.setattr(sys, "argv", ["raybio", "prepare", "recurring-pairs", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache of another node"))
    monkeypatch.setattr(entity_pairs, "pair_blocks", None)
    there = asdict(recurring_pairs(open_store(bucket / "store", DocumentStore), config))
    for name, values in here.items():
        np.testing.assert_array_equal(there[name], values)


def record_of_weights(source: str) -> str:
    check_source(source, "main")
    return source_record(source, "main")["sha256"]
