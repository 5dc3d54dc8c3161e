"""Manifests say how much of a held-out part training has seen, in every store that has one."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from raybio.methods.biostransformers.article_sort import is_validation
from raybio.methods.biostransformers.collector import ArticleCollector
from raybio.methods.biostransformers.config import ArticleConfig
from raybio.methods.biostransformers.formats.tables import Article, to_batch
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark
from raybio.methods.contrastive_probe.leakage import queries_in_sentences
from raybio.methods.mtb_mccl.documents.prepare import prepare_documents
from raybio.methods.relation_graphs.annotations.folds import read_fold
from raybio.methods.relation_graphs.config import FoldConfig
from raybio.methods.relation_graphs.prepare import prepare_words
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.store.writer import Draft


@pytest.mark.parametrize(
    "fixture",
    ["tiny_store", "tiny_citations", "tiny_task", "tiny_articles", "tiny_words", "tiny_sentences"],
)
def test_every_store_with_a_held_out_part_has_a_section(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    leakage = request.getfixturevalue(fixture).manifest["leakage"]
    assert leakage and all(isinstance(count, int) for count in leakage.values())


def test_rows_of_a_task_are_counted_as_the_job_reports_them(tiny_task: TaskStore) -> None:
    known = tiny_task.known_from_training()
    expected = {f"{split}_rows_in_training": count for split, count in known.items()}
    assert tiny_task.manifest["leakage"] == expected


def test_validation_titles_of_training_articles_are_counted(tmp_path: Path) -> None:
    """Titles of a few words, and some articles without one, against a loop over pairs."""
    rng = np.random.default_rng(0)
    config = ArticleConfig(validation_share=0.3)
    titles = [f"Title {rng.integers(40)}{'.' * int(rng.integers(2))}" for _ in range(60)]
    titles[::7] = [""] * len(titles[::7])
    articles = [
        Article(pmid, title, f"abstract {pmid}", ["Term"]) for pmid, title in enumerate(titles, 1)
    ]
    with Draft(tmp_path / "store") as draft, ArticleCollector(draft.folder) as collector:
        collector.add(to_batch(articles))
        store = collector.commit(draft, config, {"parameters": {}})
    is_held_N = is_validation(np.arange(1, 61), config)
    training = {
        title.rstrip(".") for title, held in zip(titles, is_held_N, strict=True) if not held
    }
    expected = 0
    for title, held in zip(titles, is_held_N, strict=True):
        expected += bool(held and title and title.rstrip(".") in training)
    assert 0 < expected < is_held_N.sum()
    assert store.manifest["leakage"] == {"validation_titles_in_training": expected}


def test_queries_whose_answer_a_sentence_states_are_counted() -> None:
    """Against a loop over all queries, answers and sentences."""
    rng = np.random.default_rng(0)
    words = ["Aspirin", "B-12", "iron", "zinc oxide", "rash", "bone marrow", "marrow"]
    names = [*words, "ZINC oxide.", "bone"]
    num_queries = 60
    head_Q = rng.integers(len(names), size=num_queries)
    sizes = rng.integers(1, 3, size=num_queries)
    answer_P = rng.integers(len(names), size=sizes.sum())
    benchmark = ProbeBenchmark(
        relations=("treats",),
        prompts=("[X] treats [Y] .",),
        names=tuple(names),
        is_tail_C=np.ones(len(names), dtype=bool),
        relation_Q=np.zeros(num_queries, np.int64),
        head_Q=head_Q,
        indptr_Q1=np.append(0, np.cumsum(sizes)),
        answer_P=answer_P,
        cuis=(),
        cui_indptr_C1=np.zeros(len(names) + 1, np.int64),
        cui_E=np.zeros(0, np.int64),
    )
    sentences = [
        " ".join(rng.choice([*words, "of", "ironed"], size=int(rng.integers(1, 5)), replace=False))
        for _ in range(8)
    ]

    def has(sentence: str, name: str) -> bool:
        plain = [re.sub(r"[^a-z0-9]+", " ", text.lower()).strip() for text in (name, sentence)]
        return f" {plain[0]} " in f" {plain[1]} "

    expected = 0
    for query in range(num_queries):
        first, end = benchmark.indptr_Q1[query : query + 2]
        head = int(head_Q[query])
        expected += any(
            has(sentence, names[head]) and has(sentence, names[answer])
            for sentence in sentences
            for answer in answer_P[first:end].tolist()
            if answer != head
        )
    assert 0 < expected < num_queries
    assert queries_in_sentences(benchmark, sentences) == expected


def pubtator(document_id: int, text: str, drug: str, gene: str) -> str:
    start = len(text) + 1
    lines = [f"{document_id}|t|{text}", f"{document_id}|a|{drug} {gene}"]
    end = start + len(drug)
    lines.append(f"{document_id}\t{start}\t{end}\t{drug}\tChemicalEntity\t{drug}")
    lines.append(f"{document_id}\t{end + 1}\t{end + 1 + len(gene)}\t{gene}\tGene\t{gene}")
    lines.append(f"{document_id}\tBind\t{drug}\t{gene}\tNovel")
    return "\n".join(lines) + "\n\n"


def test_documents_and_related_entities_of_training_are_counted(tmp_path: Path) -> None:
    files = {
        "train": [(1, "One text", "D1", "G1"), (2, "Another", "D2", "G2")],
        # The same text under another id; the same entities; neither, though both are known.
        "test": [(3, "one text", "D1", "G1"), (4, "New", "D2", "G2"), (5, "Also new", "D1", "G2")],
        # A test text under another id, too.
        "dev": [(6, "Third", "D3", "G3"), (7, "New", "D2", "G2")],
    }
    for name, documents in files.items():
        text = "".join(pubtator(*document) for document in documents)
        (tmp_path / f"{name}.PubTator").write_text(text)
    paths = [[tmp_path / f"{name}.PubTator"] for name in ("train", "dev", "test")]
    store = prepare_documents(tmp_path / "store", *paths, min_type_pair_relations=1)
    assert store.manifest["leakage"] == {
        "dev_documents_in_training": 0,
        "dev_documents_in_test": 1,
        "dev_relations_in_training": 1,
        "test_documents_in_training": 1,
        "test_relations_in_training": 2,
    }
    alone = prepare_documents(tmp_path / "alone", paths[0], min_type_pair_relations=1)
    assert alone.manifest["leakage"] == {}


def test_sentences_that_a_fold_trains_on_are_counted(tmp_path: Path) -> None:
    def sentence(name: str, words: str) -> dict[str, object]:
        entities = [
            {"type": "Adverse-Effect", "start": 0, "end": 1},
            {"type": "Drug", "start": 1, "end": 2},
        ]
        relations = [{"type": "Adverse-Effect", "head": 0, "tail": 1}]
        return {
            "tokens": words.split(),
            "entities": entities,
            "relations": relations,
            "orig_id": name,
        }

    words = {"a": "pain aspirin", "b": "Pain aspirin .", "c": "rash zinc", "d": "fever iron"}
    (tmp_path / "all.json").write_text(json.dumps([sentence(*one) for one in words.items()]))
    # In the first fold b is a copy of a; in the second nothing is.
    folds = {
        "split_1": {"train set": ["a", "c"], "test set": ["b", "d"]},
        "split_2": {"train set": ["a", "b"], "test set": ["c", "d"]},
    }
    (tmp_path / "folds.json").write_text(json.dumps(folds))
    store = prepare_words(
        tmp_path / "store", [tmp_path / "all.json"], splits=tmp_path / "folds.json"
    )
    assert store.manifest["leakage"] == {
        "dev_sentences_in_training": 0,
        "dev_sentences_in_test": 0,
        "test_sentences_in_training": 1,
    }


def test_the_validation_sentences_that_folds_draw_are_counted(tmp_path: Path) -> None:
    """Folds of ADE have none of their own: a run draws them from training."""
    rng = np.random.default_rng(0)
    words = [f"rash {rng.integers(12)}" for _ in range(120)]
    entities = [{"type": "Drug", "start": 1, "end": 2}]
    sentences = [
        {"tokens": one.split(), "entities": entities, "relations": [], "orig_id": str(number)}
        for number, one in enumerate(words)
    ]
    (tmp_path / "all.json").write_text(json.dumps(sentences))
    folds = {}
    for number in (1, 2):
        drawn = [str(row) for row in rng.permutation(120)]
        folds[f"split_{number}"] = {"train set": drawn[:80], "test set": drawn[80:]}
    (tmp_path / "folds.json").write_text(json.dumps(folds))
    store = prepare_words(
        tmp_path / "store", [tmp_path / "all.json"], splits=tmp_path / "folds.json"
    )
    counts = dict.fromkeys(
        ("dev_sentences_in_training", "dev_sentences_in_test", "test_sentences_in_training"), 0
    )
    for number in (1, 2):
        rows = read_fold(store, FoldConfig(fold=number))
        assert len(rows.dev) == 8
        texts = {
            split: [words[int(store.orig_ids[int(row)])] for row in of_split]
            for split, of_split in (("train", rows.train), ("dev", rows.dev), ("test", rows.test))
        }
        counts["dev_sentences_in_training"] += sum(one in texts["train"] for one in texts["dev"])
        counts["dev_sentences_in_test"] += sum(one in texts["test"] for one in texts["dev"])
        known = texts["train"] + texts["dev"]
        counts["test_sentences_in_training"] += sum(one in known for one in texts["test"])
    assert store.manifest["leakage"] == counts
    assert min(counts.values()) > 0
