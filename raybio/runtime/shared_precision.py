"""What ``precision: auto`` came to, the same for all trials of a sweep: measured anew, they could not be compared."""

from pathlib import Path

import torch

from raybio.runtime.run_folder import RunFolder, read_json, write_json
from raybio.training.precision import PrecisionName, resolve_precision

LOCK_SECONDS = 60.0


def shared_precision(path: Path, setting: PrecisionName, device: torch.device | str) -> str:
    """As whoever asked first measured it.

    Args:
        path: file in the sweep's folder that says so, once somebody has.
        setting: ``auto``, or what was asked for.
        device: to measure on.

    Raises:
        ClusterError: if the folder cannot be written.
        ConfigError: if the device cannot do what was asked for.
    """
    with RunFolder(path.parent.parent, path.parent.name).lock("precision", LOCK_SECONDS):
        found = read_json(path) or {}
        if setting not in found:
            found[setting] = resolve_precision(setting, device).name
            write_json(path, found)
    return str(found[setting])
