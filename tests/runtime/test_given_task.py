"""A downstream task on the command line."""

import json
from pathlib import Path

import pytest

from raybio.errors import ConfigError, DataError
from raybio.runtime.given_task import PUBLISHED, published_settings, with_task


def write(folder: Path, num_train: int = 70) -> Path:
    for split, size in (("train", num_train), ("dev", 5), ("test", 5)):
        lines = (json.dumps({"text": f"text {split} {n}", "label": "ab"[n % 2]}) for n in range(size))
        (folder / f"{split}.txt").write_text("\n".join(lines))
    return folder


def settings(arguments: list[str]) -> dict[str, str]:
    values = [value for option, value in zip(arguments, arguments[1:], strict=False) if option == "--set"]
    return dict(value.split("=", 1) for value in values)


def test_a_task_becomes_a_store_and_its_published_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    data = str(write(tmp_path))
    arguments = with_task(["acl_arc", "--data", data, "--init", "m", "--set", "optim.peak_lr=1e-3"])
    assert Path(arguments[arguments.index("--store") + 1]).parent == tmp_path / "stores"
    found = settings(arguments)
    assert found["plan.global_batch_rows"] == "32"
    assert found["schedule.max_steps"] == "12"  # four epochs of three steps
    assert found["optim.peak_lr"] == "1e-3"  # what is given comes last
    assert arguments[-4:] == ["--init", "m", "--set", "optim.peak_lr=1e-3"]
    (store,) = (tmp_path / "stores").iterdir()
    before = (store / "manifest.json").stat().st_mtime_ns
    again = with_task(["acl_arc", "--data", data, "--set", "plan.global_batch_rows=10"])
    assert settings(again)["schedule.max_steps"] == "28"
    assert (store / "manifest.json").stat().st_mtime_ns == before
    assert with_task(["acl_arc", "--store", str(store)])[:2] == ["--store", str(store)]
    with pytest.raises(ConfigError, match=r"is of acl_arc, want one of scicite"):
        with_task(["scicite", "--store", str(store)])


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_settings_are_settings(name: str) -> None:
    from raybio.config import override_all
    from raybio.systems.downstream import Config

    config = override_all(Config(), {key: str(value) for key, value in published_settings(name, 1000, 16).items()})
    assert config.schedule.evaluate_every_steps == 63
    assert (config.schedule.early_stopping_metric is None) == (config.optim.schedule == "linear")


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    assert with_task(["--store", "x"]) == ["--store", "x"]
    assert with_task([]) == []
    with pytest.raises(ConfigError, match="'scicit' is no task.*Did you mean 'scicite'"):
        with_task(["scicit"])
    for given in ([], ["--data", "x", "--store", "y"]):
        with pytest.raises(ConfigError, match="want either --data FILES"):
            with_task(["scicite", *given])
    with pytest.raises(DataError, match="does not exist"):
        with_task(["scicite", "--data", str(tmp_path / "nowhere")])
