"""Check of this machine's NVIDIA driver against the CUDA version of torch's build."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from raybio.runtime.preflight.finding import ERROR, OK, WARNING, Finding

OLDEST_DRIVERS = {12: "525.60.13", 13: "580.65.06"}
"""Major version of CUDA -> the oldest Linux driver that runs it, minor versions included.

NVIDIA, "CUDA compatibility", minor version compatibility; ``deploy/check_driver.sh`` has the same.
"""

PCI_DEVICES = Path("/sys/bus/pci/devices")

_NVIDIA = "0x10de"

_SMI_SECONDS = 30.0

_VERSION = re.compile(r"\d+(\.\d+)+")

_IMAGE = "take a machine image that has one, or install it"


def driver_finding(has_device: bool, driver: str | None, cuda: str | None) -> Finding:
    """Check a driver against what torch's build needs.

    Args:
        has_device: whether the machine has an NVIDIA device.
        driver: version of its driver as nvidia-smi gives it; None: there is no driver.
        cuda: the CUDA release that torch is built for; None: a build for CPUs.
    """
    if not has_device:
        return Finding("driver", OK, "no NVIDIA device: torch runs on CPUs")
    if cuda is None:
        return Finding(
            "driver",
            WARNING,
            "an NVIDIA device, and torch is built for CPUs; to use it, install a build for CUDA, "
            "such as cu126",
        )
    oldest = OLDEST_DRIVERS.get(int(cuda.split(".")[0]))
    build = f"torch's build for CUDA {cuda}"
    wanted = f"{build} needs {oldest} or newer" if oldest else f"{build} needs one"
    if driver is None:
        return Finding("driver", ERROR, f"an NVIDIA device and no driver; {wanted}: {_IMAGE}")
    if not _VERSION.fullmatch(driver):
        return Finding(
            "driver", ERROR, f"nvidia-smi reports the driver {driver!r}, want a version; {wanted}"
        )
    if oldest is None:
        text = f"{driver}; which drivers run {build} is not known here"
        return Finding("driver", WARNING, text)
    if _runs(driver, oldest):
        return Finding("driver", OK, f"{driver} runs {build}")
    older = [major for major, version in OLDEST_DRIVERS.items() if _runs(driver, version)]
    hint = f", or a build for CUDA {max(older)}, which this driver runs" if older else ""
    return Finding("driver", ERROR, f"{driver} is too old: {wanted}; update it{hint}")


def look_at_driver() -> Iterator[Finding]:
    """Check the driver of this machine."""
    if shutil.which("nvidia-smi") is None:
        has_device = _has_device()
        yield driver_finding(has_device, None, _cuda() if has_device else None)
        return
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("driver", ERROR, f"nvidia-smi does not answer ({error}); reboot the machine")
        return
    lines = (done.stdout + done.stderr).strip().splitlines() or [""]
    if done.returncode != 0:
        # Show the tool's own message: driver and library may differ, or there may be no device.
        yield Finding(
            "driver",
            ERROR,
            f"NVIDIA's driver does not answer (nvidia-smi: {lines[0][:200]}); {_IMAGE}; after an "
            "installation, reboot",
        )
        return
    yield driver_finding(True, lines[0].strip(), _cuda())


def _cuda() -> str | None:
    import torch.version

    return torch.version.cuda


def _has_device() -> bool:
    for vendor in PCI_DEVICES.glob("*/vendor"):
        try:
            if vendor.read_text().strip().lower() == _NVIDIA:
                return True
        except OSError:
            continue
    return False


def _runs(driver: str, oldest: str) -> bool:
    return _numbers(driver) >= _numbers(oldest)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
