"""SPPT on protein interaction graphs: store, encoder, objective and evaluation wired together.

McDermott et al., *Structure-inducing pre-training*. The encoder learns to fill in masked residues
and to place interacting proteins of a species close together. ``../README.md`` lists what is
implemented and where it differs from the authors' code.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from raybio.core.errors import ConfigError
from raybio.core.interfaces import Encoder, System
from raybio.core.location import Location
from raybio.core.randomness import derive_seed
from raybio.encoders.input_lengths import InputLengths
from raybio.methods.sppt.leakage import link_classes
from raybio.methods.sppt.proteins.collate import ProteinRows, TokenTable
from raybio.methods.sppt.proteins.config import Config
from raybio.methods.sppt.proteins.demo import SIMULATED_PROTEINS
from raybio.methods.sppt.proteins.encoder import (
    ProteinEncoder,
    build_protein_encoder,
    check_protein_encoder,
    max_tokens_of,
    vocabulary_of,
)
from raybio.methods.sppt.proteins.export import export_encoder
from raybio.methods.sppt.proteins.input_lengths import protein_lengths
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.methods.sppt.system import (
    LinkEvaluator,
    check_link_plan,
    link_steps_per_epoch,
    link_system,
)
from raybio.store.store import open_store

DEMO_CORPUS = SIMULATED_PROTEINS
"""The corpus it trains on if no store is given."""


def check(config: Config, store: ProteinStore) -> None:
    """Refuse settings that cannot be trained, before anything starts.

    Raises:
        ConfigError: if the encoder's source does not exist, is no protein encoder, cannot mask
            residues that are to be masked, or reads fewer tokens than ``input.max_length``; or as
            ``check_link_plan``.
        DataError: as ``check_link_plan``.
    """
    check_protein_encoder(config.encoder)
    _check_masks(config)
    _check_length(config, max_tokens_of(config.encoder))
    check_link_plan(config, store)


def input_lengths(config: Config, store: ProteinStore) -> list[InputLengths]:
    """Count the sequences that are longer than the encoder reads."""
    lengths = protein_lengths(
        store,
        config.encoder,
        config.input.max_length,
        "input.max_length",
        crop=config.input.crop,
    )
    return [lengths]


def _check_masks(config: Config) -> None:
    """Refuse to mask residues for an encoder that has no mask token and predicts none."""
    objective = config.objective
    if objective.lambda_spml == 1 and not objective.masked_anchors:
        return
    if vocabulary_of(config.encoder).mask_id is None:
        raise ConfigError(
            f"objective.lambda_spml is {objective.lambda_spml:g} and objective.masked_anchors "
            f"{str(objective.masked_anchors).lower()}, but encoder.source "
            f"{config.encoder.source!r} has no mask token and no language-model head (T5 was "
            "trained by span corruption, which is not implemented). Train it by the graph loss "
            "alone: --set objective.lambda_spml=1 --set objective.masked_anchors=false"
        )


def _check_length(config: Config, max_tokens: int) -> None:
    if config.input.max_length > max_tokens:
        raise ConfigError(
            f"input.max_length is {config.input.max_length}, but the encoder "
            f"{config.encoder.source!r} reads at most {max_tokens} tokens: lower it with --set "
            f"input.max_length={max_tokens}"
        )


steps_per_epoch = link_steps_per_epoch


def build(config: Config, store_path: str | Location) -> System:
    """Wire SPPT over a prepared protein store.

    Raises:
        StoreError: if the store is missing or damaged.
        ConfigError: if encoder, batch or lengths do not fit each other.
    """
    store = open_store(store_path, ProteinStore)
    encoder = initial_encoder(config)
    _check_length(config, encoder.max_tokens)
    table = TokenTable.of(encoder.vocabulary)
    max_length = config.input.max_length
    evaluator = link_evaluator(
        config, store, encoder, max_length=max_length, fresh=partial(initial_encoder, config)
    )
    return link_system(
        "sppt_protein",
        config,
        store,
        encoder=encoder,
        read=ProteinRows(store, table, max_length, config.input.crop),
        masks=config.input,
        evaluate=evaluator.evaluate_during_training,
        final_evaluate=evaluator.final_report,
        export=lambda folder, card: export_encoder(
            encoder, folder, card=card, max_tokens=max_length
        ),
        # The same store gives other tokens with another tokenizer.
        data_digest=f"{store.digest} read as {encoder.vocabulary.fingerprint}",
    )


def link_evaluator(
    config: Config,
    store: ProteinStore,
    encoder: ProteinEncoder,
    *,
    max_length: int,
    fresh: Callable[[], Encoder] | None,
) -> LinkEvaluator:
    """Return the evaluation of an encoder on a store's links.

    Args:
        config: its seed, memory and evaluation count.
        store: the proteins.
        encoder: has the vocabulary.
        max_length: tokens of a sequence, special ones included; of longer ones the front is read.
        fresh: returns the encoder with its initial weights; None: they are unknown.
    """
    return LinkEvaluator(
        store,
        ProteinRows(store, TokenTable.of(encoder.vocabulary), max_length),
        fresh,
        config.evaluation,
        config,
        f"vocabulary {encoder.vocabulary.fingerprint}, {max_length} tokens",
        heldout_parts=_heldout_parts(store),
    )


def _heldout_parts(store: ProteinStore) -> dict[str, np.ndarray]:
    """Return held-out links by how much training shows of their ends; empty without clusters."""
    if not store.has_clusters:
        return {}
    classes = link_classes(store.graph, store.heldout, store.cluster_N)
    return classes.parts(store.heldout)


def initial_encoder(config: Config) -> ProteinEncoder:
    """Return the encoder with its initial weights."""
    return build_protein_encoder(config.encoder, seed=derive_seed(config.seed, "weights"))
