"""Counts of proteins that are longer than the encoder reads."""

import itertools

import numpy as np

from raybio.encoders.input_lengths import InputLengths, with_equal_rows
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import max_tokens_of, vocabulary_of
from raybio.methods.sppt.proteins.store import HasResidues


def protein_lengths(
    store: HasResidues, encoder: EncoderConfig, wanted: int, setting: str, *, crop: str = "front"
) -> InputLengths:
    """Count the sequences that are longer than the encoder reads; no weights are loaded.

    Args:
        store: the sequences.
        encoder: settings of the encoder.
        wanted: most tokens of a sequence, by the settings.
        setting: dotted path of that setting.
        crop: part of a longer sequence that is read; "random" and "ends" are windows by design.
    """
    num_positions = max_tokens_of(encoder)
    return InputLengths.of(
        "sequences",
        "residues",
        np.diff(store.indptr_N1),
        min(wanted, num_positions) - vocabulary_of(encoder).num_special_per_sequence,
        setting=setting,
        setting_value=wanted,
        num_positions=num_positions,
        is_window=crop in ("random", "ends"),
    )


def with_equal_proteins(lengths: InputLengths, store: HasResidues) -> InputLengths:
    """Add the number of distinct sequences that are equal as far as the encoder reads them."""
    if not lengths.num_cut:
        return lengths
    content = store.residue_T.tobytes()
    bounds = store.indptr_N1.tolist()
    wholes = (content[start:end] for start, end in itertools.pairwise(bounds))
    return with_equal_rows(lengths, ((whole, whole[: lengths.limit]) for whole in wholes))
