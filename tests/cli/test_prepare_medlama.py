"""The commands that make a benchmark from UMLS and score the hardness of one."""

import gzip
import json
import re

from typer.testing import CliRunner

from raybio.cli.prepare import app
from raybio.core.errors import ConfigError, DataError, StoreError
from raybio.methods.contrastive_probe.benchmark.medlama import read_medlama
from tests.encoders.tiny_text import tiny_model, tiny_tokenizer
from tests.methods.contrastive_probe.benchmark.umls_files import conso_row, rel_row, write_umls


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_benchmark_is_built_and_its_counts_are_shown(tmp_path):
    folder, out = write_umls(tmp_path / "META"), tmp_path / "benchmark"
    shown = run("medlama", "--umls", folder, "--out", out, "--per-relation", 7, "--max-answers", 20)
    assert shown.exit_code == 0, shown.output
    benchmark = read_medlama(out)
    assert len(benchmark.relation_Q) == 28
    assert re.search(
        r"may_treat: 40 heads, 0 too many answers, 7 full, [1-7] hard, \d head among", shown.output
    )
    assert "may_prevent: 40 heads" in shown.output and "occurs_after: no queries" in shown.output
    assert re.search(r"skipped: name that is not English: \d+", shown.output)
    assert "| MedLAMA (published) | 19 | 19,000 |" in shown.output
    assert re.search(rf"\| {out.name} \| 4 \| 28 \|", shown.output)
    assert isinstance(run("medlama", "--umls", folder, "--out", out).exception, StoreError)
    assert run("medlama", "--umls", folder, "--out", out, "--force", "--legacy").exit_code == 0
    assert len(read_medlama(out).relation_Q) == 4 * 39


def test_invalid_settings_are_refused_before_anything_is_read(tmp_path):
    refused = run("medlama", "--umls", tmp_path, "--out", tmp_path / "out", "--per-relation", 0)
    assert isinstance(refused.exception, ConfigError) and "--per-relation" in str(refused.exception)
    refused = run("medlama", "--umls", tmp_path, "--out", tmp_path / "out")
    assert isinstance(refused.exception, DataError) and "holds no MRREL.RRF" in str(
        refused.exception
    )


def test_disputed_queries_are_counted_and_listed(tmp_path):
    # The head contains "fever"; the authors' code searches for it with the space of the separator.
    names = [
        conso_row("C1", "A1", "Yellowfever"),
        conso_row("C2", "A2", "fever"),
        conso_row("C3", "A3", "rash"),
    ]
    (tmp_path / "MRCONSO.RRF").write_text("".join(names))
    relations = [
        rel_row("C1", "may_treat", "C2"),
        rel_row("C1", "may_treat", "C3"),
        rel_row("C2", "may_treat", "C3"),
    ]
    (tmp_path / "MRREL.RRF").write_text("".join(relations))
    run("medlama", "--umls", tmp_path, "--out", tmp_path / "out")
    shown = run("hardness", "--benchmark", tmp_path / "out", "--out", tmp_path / "disputed.tsv")
    assert shown.output.splitlines() == [
        "stored: 1 of 2 queries are hard",
        "legacy: 2 of 2 queries are hard",
        "clean: 1 of 2 queries are hard",
        "1 queries are disputed",
    ]
    assert (tmp_path / "disputed.tsv").read_text().splitlines() == [
        "file\tline\thead\tstored\tlegacy\tclean",
        "may_treat_2.csv\t2\tYellowfever\teasy\thard\teasy",
    ]


def test_the_table_of_disputed_queries_creates_its_folder_and_refuses_one(tmp_path):
    run(
        "medlama",
        "--umls",
        write_umls(tmp_path / "META"),
        "--out",
        tmp_path / "out",
        "--per-relation",
        7,
    )
    shown = run(
        "hardness",
        "--benchmark",
        tmp_path / "out",
        "--out",
        tmp_path / "new" / "er" / "disputed.tsv",
    )
    assert shown.exit_code == 0, shown.output
    assert (tmp_path / "new" / "er" / "disputed.tsv").read_text().startswith("file\tline")
    refused = run("hardness", "--benchmark", tmp_path / "out", "--out", tmp_path)
    assert isinstance(refused.exception, ConfigError) and "is a folder; want a file" in str(
        refused.exception
    )
    assert refused.output == ""


def test_statistics_count_words_or_tokens_and_plot_both_sets(tmp_path):
    run(
        "medlama",
        "--umls",
        write_umls(tmp_path / "META"),
        "--out",
        tmp_path / "benchmark",
        "--per-relation",
        7,
    )
    shown = run("statistics", "--benchmark", tmp_path / "benchmark", "--out", tmp_path / "words")
    assert shown.exit_code == 0, shown.output
    assert "| words | answers |" in shown.output
    # By default this tokenizer would cut and pad; no name is a single letter.
    (tmp_path / "as_published").mkdir()
    (tmp_path / "benchmark").rename(tmp_path / "as_published" / "2021AA")
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(2)
    tokenizer.backend_tokenizer.enable_padding(length=40)
    tokenizer.save_pretrained(tmp_path / "model")
    tiny_model("bert", len(tokenizer)).save_pretrained(tmp_path / "model")
    folder = tmp_path / "as_published"
    shown = run(
        "statistics",
        "--benchmark",
        folder,
        "--out",
        tmp_path / "tokens",
        "--tokenizer",
        tmp_path / "model",
    )
    assert shown.exit_code == 0, shown.output
    data = json.loads((tmp_path / "tokens/statistics.json").read_text())
    benchmark = read_medlama(folder)
    counts = [
        len(tiny_tokenizer().encode(name, add_special_tokens=False)) for name in benchmark.names
    ]
    lengths = [counts[answer] for answer in benchmark.answer_P]
    assert data["unit"] == "tokens" and max(lengths) > 2
    assert data["share_by_length"] == {
        str(n): lengths.count(n) / len(lengths) for n in sorted(set(lengths))
    }
    assert data["num_hard_queries"] == len(read_medlama(folder, "hard").relation_Q)
    assert (tmp_path / "tokens/statistics.png").read_bytes().startswith(b"\x89PNG")


def test_statistics_know_a_hard_set_in_any_form_and_none_that_is_empty(tmp_path):
    header = "head_cui,head_name,rel,tail_names,tail_cuis\n"
    folder = tmp_path / "benchmark"
    folder.mkdir()
    (folder / "may_treat_1.csv").write_text(f"{header}C1,Aspirin,may_treat,Pain,C2\n")

    def num_hard():
        run("statistics", "--benchmark", folder, "--out", tmp_path / "out")
        return json.loads((tmp_path / "out" / "statistics.json").read_text())["num_hard_queries"]

    (folder / "may_treat_0_hard.csv").write_text(header)
    assert num_hard() is None
    (folder / "may_treat_0_hard.csv").unlink()
    rows = gzip.compress(f"{header}C1,Aspirin,may_treat,Pain,C2\n".encode())
    (folder / "may_treat_1_hard.csv.gz").write_bytes(rows)
    assert num_hard() == 1
