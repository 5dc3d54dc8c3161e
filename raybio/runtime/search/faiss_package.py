"""Detection of the installed faiss package, with or without GPUs."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from raybio.core.errors import ConfigError

CUDA_BY_PACKAGE = {"faiss-cpu": None, "faiss-gpu": "12", "faiss-gpu-cuvs": "13"}
"""Packages that hold the module faiss -> major version of the CUDA that they are built for.

An environment can have only one of them, since they install the same files.
"""


def load_faiss() -> Any:
    """Import faiss; it uses as many threads as torch.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        import faiss
    except ImportError:
        raise ConfigError(
            "search needs faiss, which is not installed; want pip install 'raybio[cpu]', or "
            "'raybio[gpu]' on a machine with a GPU and CUDA 12"
        ) from None
    import torch

    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss


def num_gpus(faiss: Any) -> int:
    """Return the number of GPUs that faiss can use."""
    return int(faiss.get_num_gpus()) if hasattr(faiss, "StandardGpuResources") else 0


def describe_faiss(faiss: Any) -> str:
    """Describe the installed package, such as "faiss-cpu 1.15.1, on the CPU"."""
    installed = [name for name in CUDA_BY_PACKAGE if _version(name) is not None]
    if not installed:
        # faiss was built from source or by conda.
        built = "with GPUs" if hasattr(faiss, "StandardGpuResources") else "for CPUs"
        return f"faiss {faiss.__version__} {built}, {_devices(faiss)}"
    packages = []
    for name in installed:
        cuda = CUDA_BY_PACKAGE[name]
        packages.append(f"{name} {_version(name)}" + (f" for CUDA {cuda}" if cuda else ""))
    return f"{' and '.join(packages)}, {_devices(faiss)}"


def _devices(faiss: Any) -> str:
    count = num_gpus(faiss)
    return "on the CPU" if count == 0 else f"on GPU 0 of {count}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
