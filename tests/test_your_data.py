"""Every command of docs/your_data.md, run on the files that the page shows."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raybio.cli.main import app
from raybio.methods import METHODS
from raybio.store.store import Store, open_store
from tests.documentation import block_lines, write_shown_files
from tests.methods.conformance_cases import tiny_config
from tests.paths import ROOT
from tests.script_process import run_script

PAGE = (ROOT / "docs" / "your_data.md").read_text(encoding="utf-8")

ELSEWHERE = ("Public data", "From STRING to an exported model")
"""Sections whose commands need files of the net: ``store/test_public_data.py`` and
``jobs/test_string_to_model.py`` run them on simulated ones."""

SECTION = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)

SAME = ("p53", "same1", "same2", "same3", "same4")
"""Stores of one content."""

TINY = [
    "--set=schedule.max_steps=2",
    "--set=schedule.evaluate_every_steps=2",
    "--set=schedule.checkpoint_every_steps=2",
    "--set=schedule.early_stopping_metric=null",
    "--set=schedule.keep_best=null",
    "--no-baseline",
]


OFFLINE = {
    "contrastive_probe": [
        "--set=encoder.source=scratch",
        "--set=plan.global_batch_rows=2",
    ]
}
"""Settings of methods whose default encoder is fetched from the hub, for four sentences."""


def commands_of_page() -> list[list[str]]:
    """Return the words of all commands but those of ``ELSEWHERE``, in order."""
    found = []
    for title, content in SECTION.findall(PAGE):
        if title in ELSEWHERE:
            continue
        found += [shlex.split(line, comments=True) for line in block_lines(content)]
    return [words for words in found if words]


@pytest.fixture
def folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_store: Store, tiny_citations: Store
) -> Path:
    """The files of the page and its models, in the folder in which commands are given."""
    assert len(write_shown_files(tmp_path, PAGE)) > 25
    system = METHODS["sppt_protein"].build(tiny_config("sppt_protein"), tiny_store.path)
    system.export(tmp_path / "MODEL", {})
    system = METHODS["sppt_mag"].build(tiny_config("sppt_mag"), tiny_citations.path)
    system.export(tmp_path / "TEXT_MODEL", {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    return tmp_path


def test_every_command_that_prepares_plans_or_evaluates_runs_on_the_files_of_the_page(
    folder: Path,
) -> None:
    prepared = []
    for words in commands_of_page():
        assert words[0] == "raybio"
        if words[1] == "predict":
            continue  # of a run that a test of the second tier trains
        more = ["--dry-run", *OFFLINE.get(words[2], ())] if words[1] == "train" else []
        done = CliRunner().invoke(app, [*words[1:], *more])
        assert done.exit_code == 0, (words, done.output, done.exception)
        if words[1] == "prepare":
            prepared.append(words[words.index("--out") + 1])
            assert f"content digest: {open_store(prepared[-1]).content_digest}" in done.output
            if prepared[-1] == "p53":
                shown = re.findall(r"^read: .*$", PAGE, re.MULTILINE)
                assert len(shown) == 2
                assert all(line in done.output for line in shown)
    assert len(prepared) == 20
    digests = [open_store(name).content_digest for name in ("blast", "blast_again")]
    assert digests[0] == digests[1]
    assert len({open_store(name).content_digest for name in SAME}) == 1
    assert not {"MODEL", "stores", *prepared} - {path.name for path in folder.iterdir()}


def test_ids_that_do_not_match_are_answered_as_the_page_says(folder: Path) -> None:
    words = "prepare proteins --edges edges_with_taxid.txt --proteins uniprot.fasta --out x"
    refused = CliRunner().invoke(app, words.split())
    answer = " ".join(PAGE[PAGE.index("DataError: 3 of 3") :].partition("\n```")[0].split())
    assert answer == f"DataError: {refused.exception}"


@pytest.mark.nightly
def test_every_command_that_trains_or_predicts_runs_at_a_tiny_budget(
    folder: Path, empty_database: Path
) -> None:
    (folder / "mlflow.db").write_bytes(empty_database.read_bytes())
    names = []
    for words in commands_of_page():
        if words[1] == "train":
            more = [*TINY, *OFFLINE.get(words[2], ())]
            done = run_script(ROOT / "jobs" / f"{words[2]}.py", folder, *words[3:], *more)
        elif words[1] == "predict":
            done = run_script(ROOT / "jobs" / "predict.py", folder, *words[2:])
        else:
            continue
        assert done.returncode == 0, (words, done.stderr[-3000:])
        names.append(words[1])
    assert names == ["train", "predict", "train", "train"]
    assert (folder / "numbers.tsv").read_text().startswith("id\tnumber\nmutant1\t")
