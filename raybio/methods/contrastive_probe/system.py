"""Contrastive-Probe wired over a store of sentences (Meng et al., ACL 2022; see README.md)."""

from functools import partial

from raybio.core.errors import ConfigError
from raybio.core.interfaces import System
from raybio.core.location import Location
from raybio.encoders.config import SCRATCH
from raybio.encoders.export import export_text_encoder
from raybio.encoders.input_lengths import InputLengths, lengths_of_texts, text_lengths
from raybio.encoders.text import (
    check_text_encoder,
    initial_encoder,
    require_mask_token,
    text_reader,
)
from raybio.encoders.tokenization import TokenizerSource
from raybio.methods.contrastive_probe.batches import ClozeBatch
from raybio.methods.contrastive_probe.cloze import ClozeCollate, ClozePlan
from raybio.methods.contrastive_probe.config import Config
from raybio.methods.contrastive_probe.demo import SIMULATED_KNOWLEDGE
from raybio.methods.contrastive_probe.evaluate import ProbeEvaluator
from raybio.methods.contrastive_probe.loss import ClozeContrast
from raybio.methods.contrastive_probe.step_selection import write_step_selection
from raybio.methods.contrastive_probe.store import ClozeStore
from raybio.store.store import open_store

__all__ = [
    "build",
    "check",
    "input_lengths",
    "write_step_selection",
]

DEMO_CORPUS = SIMULATED_KNOWLEDGE
"""The corpus it trains on if no store is given."""


def check(config: Config, store: ClozeStore) -> None:
    """Refuse settings that do not fit the encoder's source or the store, without loading weights.

    Raises:
        ConfigError: with the setting.
    """
    check_text_encoder(config.encoder, needs_mask_token=True)
    _check_and_plan(config, store)


def input_lengths(config: Config, store: ClozeStore) -> list[InputLengths]:
    """Count queries, answers and names that are longer than their limits."""
    reader = text_reader(config.encoder, count_by_word=store.count_by_word)
    mask_token = reader.tokenizer.mask_token or ""
    plan = _check_and_plan(config, store)
    max_tokens = config.cloze.max_tokens
    source = TokenizerSource.of(reader.tokenizer)
    tokenize = partial(source.tokenize, max_length=max_tokens, keep_mask=True)
    collate = ClozeCollate(plan, config.cloze, tokenize, mask_token, config.seed)
    rows = plan.trained_rows
    count = partial(text_lengths, reader=reader, max_length=config.encoder.max_length)
    lengths = [
        count(
            "queries of sentences", lambda row_R: collate.divide(row_R)[0], rows, limit=max_tokens
        ),
        count(
            "answers of sentences", lambda row_R: collate.divide(row_R)[1], rows, limit=max_tokens
        ),
    ]
    for name, benchmark in store.benchmarks.items():
        queries = benchmark.queries(mask_token)
        for kind, texts, limit in (
            (f"queries of the {name} set", queries, config.evaluation.max_query_tokens),
            (f"names of the {name} set", benchmark.names, config.evaluation.max_name_tokens),
        ):
            max_length = config.encoder.max_length
            lengths.append(
                lengths_of_texts(kind, texts, reader, max_length=max_length, limit=limit)
            )
    return lengths


def steps_per_epoch(config: Config, store: ClozeStore) -> float:
    """Return the steps in which every sentence occurs once."""
    return _check_and_plan(config, store).steps_per_epoch


def build(config: Config, store_path: str | Location) -> System:
    """Wire Contrastive-Probe over a prepared store of sentences.

    Raises:
        StoreError: if the store is missing, damaged or of another kind.
        ConfigError: if the encoder cannot be loaded, has no mask token, or settings do not fit.
    """
    store = open_store(store_path, ClozeStore)
    plan = _check_and_plan(config, store)
    encoder = initial_encoder(config.encoder, seed=config.seed, count_by_word=store.count_by_word)
    tokenizer = TokenizerSource.of(encoder.tokenizer)
    mask_token = require_mask_token(encoder.tokenizer, config.encoder.source)
    max_length = min(config.cloze.max_tokens, encoder.max_tokens)
    tokenize = partial(tokenizer.tokenize, max_length=max_length, keep_mask=True)
    collate = ClozeCollate(plan, config.cloze, tokenize, mask_token, config.seed)
    evaluator = ProbeEvaluator(config, store, collate)
    has_metrics = bool(store.benchmarks) or config.plan.num_held_out_sentences > 0
    return System(
        name="contrastive_probe",
        model=encoder,
        objective=ClozeContrast(config.objective),
        batch_type=ClozeBatch,
        collate=collate,
        steps_per_epoch=plan.steps_per_epoch,
        evaluate=evaluator.evaluate_during_training if has_metrics else None,
        final_evaluate=evaluator.final_report if store.benchmarks else None,
        export=lambda folder, card: export_text_encoder(encoder, folder, card=card),
        data_digest=f"{store.digest} read as {tokenizer.fingerprint}",
        is_pretrained=config.encoder.source != SCRATCH,
    )


def _check_and_plan(config: Config, store: ClozeStore) -> ClozePlan:
    """Return the plan of a run.

    Raises:
        ConfigError: for a query set that the store lacks, texts longer than the encoder's limit, or
            a plan with too few sentences.
    """
    if store.benchmarks and not set(config.evaluation.query_sets) <= store.benchmarks.keys():
        raise ConfigError(
            f"evaluation.query_set is {config.evaluation.query_set}, and {store.location} has only "
            f"the {', '.join(store.benchmarks)} set. Choose that, or prepare a store of a "
            "benchmark with both: <relation>_<rows>.csv (full), <relation>_<rows>_hard.csv (hard)"
        )
    lengths = {"cloze.max_tokens": config.cloze.max_tokens}
    if store.benchmarks:
        lengths["evaluation.max_query_tokens"] = config.evaluation.max_query_tokens
        lengths["evaluation.max_name_tokens"] = config.evaluation.max_name_tokens
    max_length = config.encoder.max_length
    for setting, length in lengths.items():
        if max_length != "auto" and length > max_length:
            raise ConfigError(
                f"{setting} is {length}, and encoder.max_length is {max_length}: texts would be "
                "cut at the smaller one. Raise encoder.max_length, or lower the other to it"
            )
    return ClozePlan(store, config.plan, config.seed)
