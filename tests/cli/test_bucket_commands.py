"""Commands with stores and source files in a bucket give what they give with local ones."""

import json
import sys
from pathlib import Path

import pytest

import raybio
from raybio.cli.main import main
from raybio.core.config import override_all
from raybio.core.digest import weights_digest
from raybio.core.location import BucketPath
from raybio.encoders.checkpoints import check_source, model_names
from raybio.encoders.sources import source_record
from raybio.methods import METHODS
from raybio.methods.biostransformers.store import ArticleStore
from raybio.methods.sppt.proteins.demo import SimulationConfig, write_tree_of_life
from raybio.runtime.embed import model_of_folder
from raybio.runtime.run.folder import RunFolder, model_source
from raybio.runtime.run.options import RunOptions, resolve
from raybio.store.bucket import BucketFolder
from raybio.store.remote_store import upload_store
from raybio.store.store import Store, open_store
from raybio.training.loop import fit
from tests.conftest import write_tables
from tests.methods.conformance_cases import tiny_config
from tests.s3 import ENVIRONMENT


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


def record_of_weights(source: str) -> str:
    check_source(source, "main")
    return source_record(source, "main")["sha256"]
