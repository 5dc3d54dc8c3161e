"""The command ``raybio sweep`` up to its first trial, and default names."""

import sys
from pathlib import Path

import pytest

from raybio.cli.main import main
from raybio.core.digest import json_digest
from raybio.runtime.run.options import RunOptions, resolve
from raybio.store.store import Store


def test_a_sweep_without_a_name_is_named_and_comes_to_its_checks(
    tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(sys, "argv", ["raybio"])
    given = ["--store", str(tiny_store.path), "--recipe", "small", "--sweeps", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        main("sweep", "sppt_protein", *given, "--tracking-uri", "no-address")
    assert ended.value.code == 2
    assert "--tracking-uri: got 'no-address'" in capsys.readouterr().err


def test_the_default_name_of_a_run_comes_from_its_changed_settings_and_its_store(
    tiny_store: Store, tmp_path: Path
) -> None:
    # So that settings which are added later, and other defaults, leave it.
    given = RunOptions(
        store=tiny_store.path, runs=tmp_path, settings=("objective.lambda_spml=0.3",)
    )
    digits = json_digest({"objective.lambda_spml": 0.3})[:8]
    assert resolve("sppt_protein", given).name == f"sppt_protein-{digits}{tiny_store.digest[:4]}"
