"""NVIDIA's driver against torch's build: the table, and what nvidia-smi answers."""

import re
from pathlib import Path

import pytest
import torch

from raybio.runtime.preflight import drivers, nodes
from raybio.runtime.preflight.drivers import OLDEST_DRIVERS, driver_finding, look_at_driver
from raybio.runtime.preflight.finding import ERROR, OK, WARNING, Finding
from tests.paths import ROOT


@pytest.mark.parametrize(
    ("has_device", "driver", "cuda", "state", "said"),
    [
        (False, None, "12.6", OK, ["no NVIDIA device"]),
        (True, "525.60.13", "12.6", OK, ["525.60.13 runs torch's build for CUDA 12.6"]),
        (True, "580.65.06", "13.0", OK, []),
        (True, "580.95.05", "12.8", OK, []),
        (True, "1000.1", "13.2", OK, []),
        # By numbers, not by letters.
        (True, "525.60.9", "12.6", ERROR, ["525.60.9 is too old", "525.60.13 or newer"]),
        (True, "570.133.20", "13.0", ERROR, ["580.65.06 or newer", "a build for CUDA 12"]),
        (True, "470.256.02", "13.0", ERROR, ["580.65.06 or newer; update it"]),
        (True, None, "12.6", ERROR, ["no driver", "525.60.13 or newer", "image"]),
        (True, "[N/A]", "12.6", ERROR, ["the driver '[N/A]', want a version"]),
        (True, "580.95.05", "14.0", WARNING, ["CUDA 14.0 is not known"]),
        (True, "580.95.05", None, WARNING, ["torch is built for CPUs", "cu126"]),
        (True, None, None, WARNING, ["torch is built for CPUs"]),
    ],
)
def test_a_driver_is_checked_against_what_the_build_of_torch_needs(
    has_device: bool, driver: str | None, cuda: str | None, state: str, said: list[str]
) -> None:
    finding = driver_finding(has_device, driver, cuda)
    assert finding.state == state
    assert [text for text in said if text not in finding.found] == []


def test_nodes_are_set_up_and_checked_by_the_same_table() -> None:
    script = (ROOT / "deploy" / "check_driver.sh").read_text()
    wanted = dict(re.findall(r"cu(\d\d)\[0-9\]\) wanted=(\S+) ;;", script))
    assert wanted == {str(major): version for major, version in OLDEST_DRIVERS.items()}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without tools and devices; torch is a build for CUDA 13."""
    for name in ("bin", "pci"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.setattr(drivers, "PCI_DEVICES", tmp_path / "pci")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return tmp_path


def answer(machine: Path, text: str, status: int = 0) -> None:
    smi = machine / "bin" / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho '{text}'\necho '{text}'\nexit {status}\n")
    smi.chmod(0o755)


def test_the_answer_of_nvidia_smi_is_read(machine: Path) -> None:
    answer(machine, "580.95.05")
    assert next(look_at_driver()) == Finding(
        "driver", OK, "580.95.05 runs torch's build for CUDA 13.0"
    )
    answer(machine, "570.133.20")
    assert next(look_at_driver()).state == ERROR
    answer(machine, "Failed to initialize NVML: Driver/library version mismatch", status=18)
    finding = next(look_at_driver())
    assert finding.state == ERROR and "version mismatch" in finding.found


def test_a_device_without_a_driver_is_found(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(machine / "bin"))
    assert next(look_at_driver()).state == OK
    (machine / "pci" / "0000:00:1e.0").mkdir()
    (machine / "pci" / "0000:00:1e.0" / "vendor").write_text("0x10de\n")
    assert "no driver" in next(look_at_driver()).found


def test_nodes_with_other_drivers_are_named() -> None:
    def node(name: str, driver: str | None, cuda: str | None = "13.0") -> nodes.NodeFacts:
        found = driver_finding(True, driver, cuda)
        return nodes.NodeFacts(name, name, {}, "", {}, 0, 0, "", "", "", driver=found)

    new, old, cpu = node("a", "580.95.05"), node("b", "570.133.20"), node("c", "580.95.05", None)
    [fine] = nodes.compare_drivers([new, new])
    assert fine.state == OK and "on 2 nodes" in fine.found
    error, warning = nodes.compare_drivers([new, old, cpu])
    assert error.state == ERROR and error.found.startswith("b: 570.133.20 is too old")
    assert warning.state == WARNING and warning.found.startswith("c: an NVIDIA device")
