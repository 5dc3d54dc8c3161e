"""The command ``raybio sweep`` up to its first trial."""

import sys
from pathlib import Path

import pytest

from raybio.cli.main import main
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
