"""Checks of a run before anything starts: the store, the encoder, and the lengths of its inputs."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from raybio.core.errors import ConfigError
from raybio.core.records import write_record
from raybio.encoders.input_lengths import InputLengths
from raybio.methods import METHODS
from raybio.runtime.run.encoder_source import pin_encoder
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.result import finished_result
from raybio.runtime.run.spec import RunSpec
from raybio.runtime.tracking.tracker import Tracker
from raybio.store.store import open_store

_READS_NO_INPUT = {"seed", "schedule", "optim", "memory", "precision", "on_nonfinite", "objective"}
"""Sections of a configuration that do not change the lengths of inputs."""


_counted: dict[tuple[str, ...], list[InputLengths]] = {}


def check_spec(spec: RunSpec) -> str:
    """Refuse a run that would fail in the workers, and return the store's digest.

    From then on this process loads the encoder's commit that is recorded in the run's folder.

    Raises:
        ConfigError: if the run is not finished and its encoder or texts are missing, or its
            encoder reads fewer tokens than the user set.
        StoreError: if the store is missing, damaged or of another kind.
    """
    entry = METHODS[spec.method]
    store = open_store(spec.store, entry.store)
    pin_encoder(spec.folder)
    if finished_result(spec.folder, spec.config) is None:
        entry.check(spec.config, store)
        check_lengths(input_lengths(spec), spec.explicit)
    return store.digest


def published_recipe(spec: RunSpec) -> str | None:
    """Return the recipe with the published settings of the store and configuration, if any."""
    entry = METHODS[spec.method]
    return entry.published_recipe(spec.config, open_store(spec.store, entry.store))


def input_lengths(spec: RunSpec) -> list[InputLengths]:
    """Return how many rows of the store are truncated.

    Counting tokenizes the texts, which takes seconds. Runs of a comparison mostly read the same
    data, so the counts are cached.
    """
    entry = METHODS[spec.method]
    store = open_store(spec.store, entry.store)
    reading = {
        name: section
        for name, section in spec.config.to_mapping().items()
        if name not in _READS_NO_INPUT
    }
    key = (spec.method, str(spec.store), store.digest, json.dumps(reading, sort_keys=True))
    if key not in _counted:
        _counted[key] = entry.input_lengths(spec.config, store)
    return _counted[key]


def check_lengths(lengths: Sequence[InputLengths], explicit: frozenset[str]) -> None:
    """Refuse a length that the user set and the encoder cannot read.

    Args:
        lengths: lengths of the inputs.
        explicit: dotted paths of settings that the user gave one by one.

    Raises:
        ConfigError: with both lengths.
    """
    for inputs in lengths:
        if (
            inputs.setting not in explicit
            or inputs.setting_value is None
            or inputs.num_positions is None
        ):
            continue
        if inputs.setting_value > inputs.num_positions:
            raise ConfigError(
                f"{inputs.setting}: got {inputs.setting_value}, and the encoder reads at most "
                f"{inputs.num_positions} tokens, special ones included; the longest of the "
                f"{inputs.name} has {inputs.longest:,} {inputs.unit}. Want at most "
                f"{inputs.num_positions}, or an encoder with more positions"
            )


def report_cuts(lengths: Sequence[InputLengths], folder: RunFolder, tracker: Tracker) -> None:
    """Print how many inputs are cut, and record it in the run's folder and in MLflow."""
    for remark in record_cuts(lengths, folder, tracker):
        print(remark, flush=True)


def record_cuts(lengths: Sequence[InputLengths], folder: RunFolder, tracker: Tracker) -> list[str]:
    """Record in the run's folder and in MLflow how many inputs are cut; return a remark on each."""
    counted = [asdict(inputs) | {"remark": inputs.remark} for inputs in lengths]
    write_record(folder.inputs, "inputs", {"inputs": counted})
    remarks = [inputs.remark for inputs in lengths if inputs.remark]
    cut_shares = {}
    for inputs in lengths:
        share = inputs.num_cut / max(inputs.num_counted, 1)
        cut_shares[f"inputs/{inputs.name}/cut_share"] = share
    tracker.note({"inputs": "; ".join(remarks)} if remarks else {}, cut_shares)
    return remarks
