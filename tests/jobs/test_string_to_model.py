"""The four commands of docs/your_data.md: STRING from a server to a trained, evaluated, exported model."""

import gzip
import random
import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from raybio.core.records import read_record
from raybio.methods.sppt.proteins.demo import SimulationConfig, write_tree_of_life
from raybio.store.store import open_store
from tests.jobs.test_sppt_job import run
from tests.loopback_site import serve
from tests.paths import ROOT

TAXID = "511145"
SECTION = re.compile(r"## From STRING to an exported model\n.*?```sh\n(.*?)```", re.DOTALL)
SMALL = [
    *("--set", "encoder.width=16", "--set", "encoder.num_heads=2", "--set", "encoder.ffn_width=32"),
    *("--set", "encoder.num_layers=1", "--set", "schedule.max_steps=20"),
    *("--set", "schedule.evaluate_every_steps=10", "--set", "schedule.checkpoint_every_steps=10"),
    *("--set", "optim.num_warmup_steps=2"),
]


def write_release(folder: Path) -> tuple[dict[str, bytes], set[frozenset[str]], list[str]]:
    """Return a species' files by their path at STRING, its links of 700 and more, and its ids."""
    config = SimulationConfig(num_species=1, num_proteins=300, num_links=1200)
    source = write_tree_of_life(folder, config)
    (network,) = source.interactomes.glob("[0-9]*.txt")
    rng = random.Random(0)
    score_by_pair: dict[frozenset[str], int] = {}
    for line in network.read_text().splitlines():
        pair = frozenset(f"{TAXID}.{name}" for name in line.split())
        if len(pair) == 2:
            score_by_pair.setdefault(pair, rng.choice([150, 400, 699, 700, 900, 999]))
    lines = []
    for pair, score in score_by_pair.items():
        a, b = sorted(pair)
        lines += [f"{a} {b} {score}\n", f"{b} {a} {score}\n"]
    links = "protein1 protein2 combined_score\n" + "".join(sorted(lines))
    fasta = (source.sequences / f"{network.stem}.fa").read_text()
    fasta = fasta.replace(f">{network.stem}.", f">{TAXID}.")
    files = {}
    for kind, ending, text in (
        ("protein.links", "txt.gz", links),
        ("protein.sequences", "fa.gz", fasta),
    ):
        name = f"{kind}.v12.0/{TAXID}.{kind}.v12.0.{ending}"
        files[f"/download/{name}"] = gzip.compress(text.encode())
    kept = {pair for pair, score in score_by_pair.items() if score >= 700}
    ids = [line[1:].split()[0] for line in fasta.splitlines() if line.startswith(">")]
    return files, kept, ids


@pytest.mark.nightly
def test_the_four_commands_of_the_guide_make_a_model_of_strings_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModel, AutoTokenizer

    monkeypatch.setenv("no_proxy", "*")
    guide = (ROOT / "docs" / "your_data.md").read_text(encoding="utf-8")
    found = SECTION.search(guide)
    assert found is not None
    commands = shlex.split(found[1].replace("\\\n", " ").replace("\n", " ; "))
    files, kept, ids = write_release(tmp_path / "release")
    home = tmp_path / "home"
    home.mkdir()
    with serve(files) as site:
        for more in (["--url", site.url], [], SMALL, []):
            end = commands.index(";")
            program, *arguments = commands[:end]
            commands = commands[end + 1 :]
            assert program == "raybio"
            done = run(home, "-m", "raybio.cli.main", *arguments, *more)
            assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert commands == []
    store = open_store(home / "ecoli", verify=True)
    counts = store.manifest["counts"]
    assert counts["links"] + counts["heldout_links"] == len(kept)
    result = read_record(home / "runs" / "ecoli" / "result.json", "result")
    assert (result["status"], result["step"]) == ("finished", 20)
    assert "lambda_spml = 0.5 (this run)" in (home / "runs" / "ecoli" / "table.md").read_text()
    export = home / "runs" / "ecoli" / "export"
    AutoModel.from_pretrained(export)
    AutoTokenizer.from_pretrained(export)
    assert pq.read_table(home / "ecoli.parquet").column("key").to_pylist() == ids
