import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from raybio.cli import prepare
from raybio.core.errors import ConfigError
from raybio.core.fields import fields
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.proteins.demo import SimulationConfig, write_tree_of_life
from raybio.store.store import open_store
from tests.paths import ROOT


def test_help_lists_every_setting_with_meaning_and_default():
    shown = re.sub(r"[│\s]+", " ", CliRunner().invoke(prepare.app, ["proteins", "--help"]).output)
    for field in fields(PrepareConfig):
        # Repeatable options are named for one value.
        option = {"taxids": "taxid", "strip_prefixes": "strip_prefix"}.get(field.path, field.path)
        assert f"--{option.replace('_', '-')} " in shown
    assert "fraction of each group's links that is kept out of training" in shown
    assert "[default: 0.05]" in shown


def test_a_tree_of_life_download_is_prepared_and_what_was_set_aside_is_shown(tmp_path):
    source = write_tree_of_life(
        tmp_path / "raw", SimulationConfig(num_species=2, num_proteins=60, num_links=150)
    )
    command = [
        "proteins",
        "--interactomes",
        str(source.interactomes),
        "--species",
        str(source.species),
    ]
    command += [
        "--sequences",
        str(source.sequences),
        "--out",
        str(tmp_path / "store"),
        "--heldout-share",
        "0.1",
    ]
    result = CliRunner().invoke(prepare.app, command, catch_exceptions=False)
    assert result.exit_code == 0
    store = open_store(tmp_path / "store", verify=True)
    assert store.manifest["parameters"]["heldout_share"] == 0.1
    assert store.manifest["counts"]["links"] + store.manifest["counts"]["heldout_links"] == 150
    assert "skipped: duplicate link (merged)" in result.output
    assert re.search(
        r"skipped: duplicate link \(merged\): first \S+:\d+.*, more in .*manifest.json",
        result.output,
    )


@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        ([], "none of them"),
        (
            ["--edges", "e", "--proteins", "p", "--species", "s"],
            "--species, --edges, --proteins",
        ),
        (["--interactomes", "i"], "--interactomes"),
        (["--edges", "e", "--sequences", "p"], "--sequences, --edges"),
    ],
)
def test_half_a_layout_or_two_are_refused(arguments, got, tmp_path):
    result = CliRunner().invoke(
        prepare.app, ["proteins", "--out", str(tmp_path / "store"), *arguments]
    )
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == (
        "want --edges and --proteins (FASTA or a table), or the Tree of life's --interactomes, "
        f"--species and --sequences; got {got}"
    )


@pytest.mark.parametrize(
    ("given", "missing"),
    [(["--edges", "e.tsv"], "--proteins"), (["--proteins", "p.fasta"], "--edges")],
)
def test_links_without_proteins_and_the_reverse_are_refused_with_the_missing_option(
    given, missing, tmp_path
):
    command = ["proteins", "--out", str(tmp_path / "store"), *given]
    refused = CliRunner().invoke(prepare.app, command).exception
    assert isinstance(refused, ConfigError)
    assert str(refused) == f"{missing} is missing: want --edges and --proteins, both"


def test_a_value_out_of_range_is_refused_before_anything_is_read(tmp_path):
    command = [
        "proteins",
        "--out",
        str(tmp_path / "store"),
        "--edges",
        "e",
        "--proteins",
        "p",
        "--heldout-share",
        "2",
    ]
    result = CliRunner().invoke(prepare.app, command)
    assert result.exit_code == 2
    assert "--heldout-share" in result.output and "got 2, want" in result.output
    assert not (tmp_path / "store").exists()


def test_an_error_is_one_line_and_exit_code_2(tmp_path):
    command = [sys.executable, "jobs/prepare.py", "proteins", "--out", str(tmp_path / "store")]
    command += ["--edges", str(tmp_path / "e.tsv"), "--proteins", str(tmp_path / "p.tsv")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"ConfigError: --edges {tmp_path / 'e.tsv'}: no such file"]


def test_a_mistyped_option_is_refused_with_the_one_that_was_meant():
    result = CliRunner().invoke(prepare.app, ["proteins", "--heldout-shar", "0.1"])
    assert result.exit_code == 2
    assert "--heldout-share" in result.output
