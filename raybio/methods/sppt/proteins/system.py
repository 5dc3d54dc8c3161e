"""Structure-preserving pre-training (SPPT) on protein interaction graphs.

McDermott, Yap, Szolovits, Zitnik: "Structure-inducing pre-training". L = (1 - λ) L_MLM + λ L_SPML
    over a graph of
proteins: one encoder learns to fill in masked residues and to place interacting proteins of a
    species close together.

Reproduced: the tiered sampling (tier 1: negatives from the anchor's species; tier 2: the loss
    weights the pairs of
the batch), both graph losses, the masked anchor view, and link retrieval as the measure. Different
from the authors' code, each with a setting for theirs: special tokens are never masked; copies of a
node in a batch are ignored instead of being each other's negatives; the paper's λ is used as such;
negatives that no species can give come from outside it, counted; pairs run over the sequences of
all workers; and held-out links are measured beside the training links.
"""

from functools import partial
from pathlib import Path

from raybio.core.errors import ConfigError
from raybio.core.interfaces import System
from raybio.core.randomness import derive_seed
from raybio.encoders.input_lengths import InputLengths
from raybio.methods.sppt.proteins.checkpoint import check_protein_source
from raybio.methods.sppt.proteins.collate import ProteinRows, TokenTable
from raybio.methods.sppt.proteins.config import Config
from raybio.methods.sppt.proteins.demo import default_corpus
from raybio.methods.sppt.proteins.encoder import (
    ProteinEncoder,
    build_protein_encoder,
    max_tokens_of,
)
from raybio.methods.sppt.proteins.export import export_encoder
from raybio.methods.sppt.proteins.input_lengths import protein_lengths
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.methods.sppt.system import LinkEvaluator, link_system
from raybio.store.store import open_store

STORE = ProteinStore
"""The class of the stores that it trains on."""


def prepare_demo(directory: str | Path) -> Path:
    """The embedded default corpus as a prepared store inside ``directory``; made on the first call."""
    return default_corpus(directory).path


def check(config: Config, store: ProteinStore) -> None:
    """Refuse what can be known to fail before anything starts.

    Raises:
        ConfigError: if the encoder's source is not there, is no protein encoder, or reads less than
            the inputs' length.
    """
    check_protein_source(config.encoder.source, config.encoder.revision)
    _check_length(config, max_tokens_of(config.encoder))


def input_lengths(config: Config, store: ProteinStore) -> list[InputLengths]:
    """Count the sequences that are longer than what is read of them."""
    wanted, crop = config.input.max_length, config.input.crop
    return [protein_lengths(store, config.encoder, wanted, "input.max_length", crop=crop)]


def _check_length(config: Config, max_tokens: int) -> None:
    if config.input.max_length > max_tokens:
        raise ConfigError(
            f"input.max_length is {config.input.max_length}, but the encoder "
            f"{config.encoder.source!r} reads at most {max_tokens} tokens: lower it with --set "
            f"input.max_length={max_tokens}"
        )


def build(config: Config, store_path: str | Path) -> System:
    """Wire SPPT over a prepared protein store.

    Raises:
        StoreError: if the store is missing or damaged.
        ConfigError: if encoder, batch or lengths do not fit each other.
    """
    store = open_store(store_path, ProteinStore)
    encoder = _encoder(config)
    _check_length(config, encoder.max_tokens)
    table, longest = TokenTable.of(encoder.vocabulary), config.input.max_length
    evaluator = LinkEvaluator(
        store,
        ProteinRows(store, table, longest),
        partial(_encoder, config),
        config.evaluation,
        config,
    )
    return link_system(
        "sppt_protein",
        config,
        store,
        encoder=encoder,
        read=ProteinRows(store, table, longest, config.input.crop),
        masks=config.input,
        evaluate=evaluator.evaluate_during_training,
        final_evaluate=evaluator.final_report,
        export=lambda folder, card: export_encoder(encoder, folder, card=card, max_tokens=longest),
        # Another tokenizer makes other data of the same store.
        data_digest=f"{store.digest} read as {encoder.vocabulary.fingerprint}",
    )


def _encoder(config: Config) -> ProteinEncoder:
    """The encoder as training begins with it."""
    return build_protein_encoder(config.encoder, seed=derive_seed(config.seed, "weights"))
