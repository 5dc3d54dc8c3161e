"""The jobs of BioSTransformers on small real input: prepare, and evaluate zero-shot."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raybio.cli import evaluate
from raybio.cli.prepare import app
from raybio.core.errors import ConfigError, DataError
from raybio.methods.biostransformers.store import ArticleStore
from raybio.methods.biostransformers.zero_shot.names import TASK_NAMES
from raybio.store.store import open_store
from tests.methods.biostransformers.formats.medline_files import article_set, citation
from tests.paths import ROOT

SHARED = ROOT.parent / "shared" / "data"
needs_data = pytest.mark.skipif(not SHARED.exists(), reason="real data is not at hand")


def prepare(*arguments: object):
    return CliRunner().invoke(
        app, [str(argument) for argument in arguments], catch_exceptions=False
    )


@needs_data
def test_the_real_medline_files_become_a_store(tmp_path: Path) -> None:
    done = prepare(
        "medline", "--input", SHARED / "medline_xml" / "*.xml.gz", "--out", tmp_path / "store"
    )
    assert done.exit_code == 0
    store = open_store(tmp_path / "store", ArticleStore, verify=True)
    assert store.num_rows == 1132
    assert store.manifest["counts"]["articles_with_abstract"] == 997
    assert "1,132" in done.output


@needs_data
def test_titles_and_pubmedqa_become_one_store_of_pairs(tmp_path: Path) -> None:
    tables = (
        SHARED / "biostransformers" / "validation_data_3M.csv.gz",
        SHARED / "pubmedqa" / "ori_pqal.json.gz",
    )
    inputs = [part for table in tables for part in ("--input", table)]
    assert prepare("pairs", *inputs, "--out", tmp_path / "store").exit_code == 0
    store = open_store(tmp_path / "store", ArticleStore)
    assert store.num_rows == 19_914  # some PMIDs come more than once
    assert store.manifest["counts"]["articles_with_abstract"] == 1000


def test_a_broken_file_is_set_aside_by_name_and_the_others_go_on(tmp_path: Path) -> None:
    mesh = "<MeshHeading><DescriptorName MajorTopicYN='N'>Rats</DescriptorName></MeshHeading>"
    (tmp_path / "a.xml").write_text(article_set(citation(1, mesh=mesh)))
    (tmp_path / "b.xml").write_text(article_set(citation(2, mesh=mesh))[:-40])
    with pytest.raises(DataError, match=r"1 of 2 file records are bad \(50.0%\)"):
        prepare("medline", "--input", tmp_path / "*.xml", "--out", tmp_path / "store")
    command = [
        "medline",
        "--input",
        tmp_path / "*.xml",
        "--out",
        tmp_path / "store",
        "--max-bad-share",
        "0.5",
    ]
    done = prepare(*command)
    assert done.exit_code == 0
    assert "broken file (skipped as a whole)" in done.output
    assert "broken: b.xml: " in done.output
    assert not list(tmp_path.glob(".store*"))
    assert open_store(tmp_path / "store", ArticleStore).pmid_N.tolist() == [1]


def test_nothing_but_broken_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "b.xml").write_text("<PubmedArticleSet>")
    with pytest.raises(DataError, match="none of 1 files can be read"):
        prepare("medline", "--input", tmp_path / "b.xml", "--out", tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_a_table_too_small_for_validation_is_said_to_be_with_what_to_do(tmp_path: Path) -> None:
    table = tmp_path / "articles [1].tsv"
    table.write_text("1\tone\t\tMice\n2\ttwo\t\tRats\n")
    done = prepare("pairs", "--input", table, "--out", tmp_path / "store [/red]")
    assert "no article is kept for validation: training" in done.output
    assert "larger --validation-share" in done.output
    done = prepare(
        "pairs", "--input", table, "--out", tmp_path / "all", "--validation-share", "0.9"
    )
    assert open_store(tmp_path / "all", ArticleStore).is_validation_N.any()
    assert "validation:" not in done.output
    done = prepare("pairs", "--input", table, "--out", tmp_path / "none", "--validation-share", "0")
    assert "validation:" not in done.output


def test_a_pattern_without_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--input .*nothing.*: no such file"):
        prepare("pairs", "--input", tmp_path / "nothing*.tsv", "--out", tmp_path / "store")


@needs_data
def test_zero_shot_evaluation_of_an_exported_run_gives_a_report(
    tiny_articles: ArticleStore, tmp_path: Path
) -> None:
    from raybio.methods.biostransformers.system import build
    from tests.methods.conformance_cases import tiny_config

    system = build(tiny_config("biostransformers"), tiny_articles.path)
    model = system.export(tmp_path / "run" / "export", {"name": "tiny"})
    command = [
        "zero-shot",
        "--model",
        str(model),
        "--data",
        str(SHARED),
        "--out",
        str(tmp_path / "report"),
    ]
    done = CliRunner().invoke(
        evaluate.app, [*command, "--tasks", "bioasq-snippets"], catch_exceptions=False
    )
    assert done.exit_code == 0
    (task,) = json.loads((tmp_path / "report" / "report.json").read_text())["tasks"]
    assert [one["scorer"] for one in task["scorers"]] == ["run", "TF-IDF", "BM25"]
    report = (tmp_path / "report" / "report.md").read_text()
    assert "BioS-MiniLM (published)" in report
    assert task["protocol"] in report


def test_an_unknown_task_a_missing_data_set_and_a_file_for_the_report_are_named(
    tmp_path: Path,
) -> None:
    command = [
        "zero-shot",
        "--model",
        "m",
        "--data",
        str(tmp_path),
        "--out",
        str(tmp_path / "report"),
    ]
    (tmp_path / "report").write_text("")
    for more, message in (
        (["--tasks", "hocus"], "'hocus' is no task"),
        ([], "report: is a file; want a folder"),
        (["--out", str(tmp_path / "new")], "holds no hoc"),
    ):
        with pytest.raises(ConfigError, match=message):
            CliRunner().invoke(evaluate.app, [*command, *more], catch_exceptions=False)
    assert not (tmp_path / "new").exists()


def test_help_lists_the_tasks() -> None:
    shown = CliRunner().invoke(evaluate.app, ["zero-shot", "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert [name for name in TASK_NAMES if name not in shown.stdout] == []
