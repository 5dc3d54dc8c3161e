"""Names and shapes of the weights of a source, from the headers of its files."""

from functools import cache
from pathlib import Path

from huggingface_hub import parse_safetensors_file_metadata, try_to_load_from_cache
from safetensors import SafetensorError, safe_open

from raybio.encoders.bin_checkpoint import converted_weights
from raybio.encoders.sources import (
    find_source,
    find_weights,
    is_converted,
    require_file,
    unloadable,
    weights_files,
)

Shape = tuple[int, ...]


def weight_shapes(source: str, revision: str) -> dict[str, Shape]:
    """Return name -> shape of the weights of a source.

    Pickled weights are fetched and converted. Of safetensors on the hub, only the headers are
    fetched.

    Raises:
        ConfigError: if the source has no weights, they are damaged or more than tensors, or the hub
            cannot be reached.
    """
    shapes: dict[str, Shape] = {}
    if find_weights(source, revision).is_pickle:
        folder = converted_weights(source, revision)
        remedy = f"remove {folder}, and the weights of the source are converted again"
        for path in sorted(folder.glob("*.safetensors")):
            shapes |= _shapes_of_file(source, path, remedy)
        return shapes
    for name in weights_files(source, revision):
        shapes |= _shapes(source, name, revision)
    return shapes


def _shapes(source: str, name: str, revision: str) -> dict[str, Shape]:
    at = find_source(source, revision)
    is_cached = at.commit is not None and isinstance(
        try_to_load_from_cache(at.location, name, revision=at.commit), str
    )
    if at.commit is None or is_cached or not at.is_online:
        remedy = f"remove {source}" if is_converted(source) else "fetch it again"
        return _shapes_of_file(source, require_file(source, name, revision), remedy)
    try:
        return _shapes_on_hub(at.location, name, at.revision)
    except Exception as error:  # of any library that the hub's client uses
        reason = f"the header of {name} cannot be read from the hub ({error})"
        raise unloadable(source, reason) from None


@cache
def _shapes_on_hub(hub_id: str, name: str, commit: str) -> dict[str, Shape]:
    header = parse_safetensors_file_metadata(hub_id, name, revision=commit)
    return {tensor: tuple(info.shape) for tensor, info in header.tensors.items()}


def _shapes_of_file(source: str, path: Path, remedy: str) -> dict[str, Shape]:
    """Return the shapes of a file; refuse one that is cut, or a pointer of Git LFS."""
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            return {name: tuple(file.get_slice(name).get_shape()) for name in names}
    except (SafetensorError, OSError) as error:
        # The message may be cut, and the path of a cache is long.
        raise unloadable(source, f"{path.name} is damaged; {remedy} ({error})") from None
