"""Scores of untrained models that the runs of a folder share: random vectors, rivals, initial."""

from importlib import metadata, util
from pathlib import Path

import torch

from raybio.core.shared_scores import SharedScores
from raybio.core.version import code_digest
from raybio.methods import METHODS
from raybio.runtime.run.folder import SHARED_SCORES, RunFolder
from raybio.training.settings import TrainingConfig

_PACKAGES = ("torch", "transformers", "numpy", "scipy", "scikit-learn", "tokenizers")
"""Packages on which scores depend."""


def shared_scores(
    method: str, data_digest: str, config: TrainingConfig, folder: RunFolder, precision: str
) -> SharedScores:
    """Return the scores that the runs, or the cross-validations, next to ``folder`` share.

    A change of code, packages, hardware, data or evaluation settings leads to other files.

    Args:
        method: key in ``METHODS``.
        data_digest: digest of the store, and of how it is read.
        config: the run's configuration.
        folder: the run's folder.
        precision: the run's arithmetic.
    """
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    facts = {
        "method": method,
        "data": data_digest,
        "precision": precision,
        "code_sha256": _code_digest(METHODS[method].system),
        "versions": {package: metadata.version(package) for package in _PACKAGES},
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "gpu": gpu,
    }
    # The decided precision matters, not the setting.
    settings = config.to_mapping()
    settings.pop("precision")
    return SharedScores(folder.path.parent / SHARED_SCORES, settings, facts)


def _code_digest(system: str) -> str:
    """Return the sha256 of raybio's code and of the code in the package of a method."""
    spec = util.find_spec(system)
    assert spec is not None and spec.origin is not None
    return code_digest(Path(spec.origin).parent)
