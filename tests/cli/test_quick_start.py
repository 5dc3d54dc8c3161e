"""The commands of README's quick start, in order: dry runs where they would train for minutes.

What they would leave is a recorded run, and the export and embeddings of an untrained encoder.
"""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import raybio
from raybio.cli.main import app
from raybio.core.records import write_record
from raybio.methods import METHODS
from raybio.runtime.run.folder import RunFolder
from raybio.store.store import Store, open_store
from tests.conftest import write_tables
from tests.golden_records import PRESENT
from tests.methods.conformance_cases import tiny_config
from tests.paths import ROOT
from tests.runtime.search.test_index import write
from tests.test_docs import parsed

RECORDED = PRESENT / "finished" / "sppt_protein"


def commands_of_readme() -> list[list[str]]:
    """Return the words of each line of the block after "Quick start on your data"."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("## Quick start on your data")[2]
    lines = section.partition("```sh\n")[2].partition("```")[0].splitlines()
    return [shlex.split(line, comments=True) for line in lines]


def leave_trained(store: Store) -> None:
    """Leave what the trainings of the block leave: the run "mine" and the sweep "lambda"."""
    mine = RunFolder(Path("runs"), "mine")
    shutil.copytree(RECORDED, mine.path)
    METHODS["sppt_protein"].build(tiny_config("sppt_protein"), store.path).export(mine.export, {})
    sweep = RunFolder(Path("sweeps"), "lambda")
    sweep.make()
    write_record(sweep.path / "run.json", "run", {"config": {"space": {}}})
    for name in ("trial-1", "trial-2"):
        shutil.copytree(RECORDED, sweep.path / "trials" / name)


def test_every_command_of_the_quick_start_follows_from_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("RAYBIO_RUNS", "RAYBIO_SWEEPS", "RAYBIO_STORES"):
        monkeypatch.delenv(variable, raising=False)
    write_tables(tmp_path, num_groups=2, rows_per_group=64)
    _, *lines = Path("proteins.tsv").read_text().splitlines()
    sequences = [line.rpartition("\t")[2] for line in lines]
    fasta = [f">k{number}\n{sequence}\n" for number, sequence in enumerate(sequences)]
    Path("proteins.fasta").write_text("".join(fasta))
    links = Path("edges.tsv").read_text()
    for number, line in enumerate(lines):
        links = links.replace(line.partition("\t")[0], f"k{number}")
    Path("edges.tsv").write_text(links)
    given = commands_of_readme()
    shown = {}
    for program, *words in given:
        if program != "raybio":
            continue
        if words[0] == "embed":  # on a Ray cluster: only parsed here
            _, values = parsed(words)
            model = raybio.load(RunFolder(Path("runs"), values["run"]).path)
            write(Path(values["out"]), model.encode(sequences), model.digest())
            shown["embed"] = ""
            continue
        is_training = words[0] in ("train", "sweep")
        done = CliRunner().invoke(app, [*words, *(["--dry-run"] if is_training else [])])
        assert done.exit_code == 0, (words, done.output, done.exception)
        shown[words[0]] = re.sub(r"\s+", " ", done.output)
        if words[0] == "train":
            leave_trained(open_store("STORE"))
    assert [words[1] for words in given if words[0] == "raybio"] == list(shown)
    assert Path("map.html").is_file()
    assert Path("comparison/report.html").is_file()
    assert all(name in shown["compare"] for name in ("mine", "trial-1", "trial-2"))
