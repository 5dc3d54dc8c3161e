from pathlib import Path

import numpy as np

from raybio.methods.contrastive_probe.benchmark.medlama import read_medlama
from raybio.methods.contrastive_probe.demo import (
    SIMULATED_KNOWLEDGE,
    KnowledgeConfig,
    write_knowledge,
)
from raybio.methods.contrastive_probe.store import ClozeStore
from raybio.store.store import open_store

SMALL = KnowledgeConfig(num_heads=6, num_tails=5, sentences_per_fact=3)


def test_the_benchmark_in_the_store_is_that_of_the_files(tmp_path: Path) -> None:
    store = SIMULATED_KNOWLEDGE.prepare(tmp_path / "stores", SMALL)
    _, folder = write_knowledge(tmp_path / "raw", SMALL)
    expected, found = read_medlama(folder), store.benchmarks["full"]
    assert set(store.benchmarks) == {"full"}
    for name in ("relations", "prompts", "names", "cuis"):
        assert getattr(found, name) == getattr(expected, name)
    for name in (
        "is_tail_C",
        "relation_Q",
        "head_Q",
        "indptr_Q1",
        "answer_P",
        "cui_indptr_C1",
        "cui_E",
    ):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert open_store(store.path, ClozeStore) is store


def test_every_fact_has_the_configured_number_of_sentences_and_no_other_fact_has_any(
    tmp_path: Path,
) -> None:
    store = SIMULATED_KNOWLEDGE.prepare(tmp_path, SMALL)
    benchmark = store.benchmarks["full"]
    sentences = store.sentences(np.arange(store.num_rows))
    num_stated = 0
    for query, head in enumerate(benchmark.head_Q.tolist()):
        for answer in benchmark.answer_P[
            benchmark.indptr_Q1[query] : benchmark.indptr_Q1[query + 1]
        ].tolist():
            fitting = [
                s
                for s in sentences
                if benchmark.names[head] in s and s.endswith(f" {benchmark.names[answer]}")
            ]
            assert len(fitting) == SMALL.sentences_per_fact
            num_stated += len(fitting)
    assert num_stated == len(sentences)


def test_equal_settings_give_equal_bytes_and_another_seed_other_ones(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_knowledge(tmp_path / name, SMALL)
    write_knowledge(tmp_path / "c", SMALL.model_copy(update={"seed": 1}))
    files = sorted(
        path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()
    )
    assert all(
        (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
        for file in files
    )
    assert (tmp_path / "a" / "sentences.txt.gz").read_bytes() != (
        tmp_path / "c" / "sentences.txt.gz"
    ).read_bytes()
