"""Fixtures that several packages share."""

import fcntl
import gc
import gzip
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from raybio.methods.biostransformers.collector import ArticleCollector
from raybio.methods.biostransformers.config import ArticleConfig
from raybio.methods.biostransformers.formats.tables import Article, to_batch
from raybio.methods.biostransformers.store import ArticleStore
from raybio.methods.contrastive_probe.demo import SIMULATED_KNOWLEDGE, KnowledgeConfig
from raybio.methods.contrastive_probe.store import ClozeStore
from raybio.methods.mtb_mccl.documents.demo import DocumentsConfig, write_documents
from raybio.methods.mtb_mccl.documents.prepare import prepare_documents
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.relation_graphs.demo import WordsConfig, write_words
from raybio.methods.relation_graphs.prepare import prepare_words
from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.sppt.articles.demo import SIMULATED_CITATIONS, CitationsConfig
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.downstream.demo import SIMULATED_FOLDS, FoldsConfig
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.proteins.formats.tables import Tables
from raybio.methods.sppt.synthetic.demo import SIMULATED_TOPICS, SentencesConfig
from raybio.methods.sppt.synthetic.store import TopicStore
from raybio.store.store import Store
from raybio.store.writer import Draft

pytest_plugins = ["tests.azure", "tests.runtime_fixtures", "tests.s3"]

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
COMMANDS = {
    "test_articles_job",
    "test_contrastive_probe_job",
    "test_driver_faults",
    "test_first_bucket",
    "test_job_submit",
    "test_multi_node",
    "test_preflight_nodes",
    "test_relations_job",
    "test_sppt_job",
    "test_sweep_faults",
    "test_track_postgresql",
}
"""Modules whose commands start clusters of their own: one after the other, beside the shared cluster of the tests."""


def pytest_configure(config: pytest.Config) -> None:
    """One thread, here and in what is started: two that wait for each other while others work take longer."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    # Commands collect garbage as they end. What the tests have imported is none, and is left out.
    is_controller = config.getoption("numprocesses", default=None) is not None
    if not is_controller or hasattr(config, "workerinput"):
        gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Collect garbage from now on, in what is made from now on."""
    gc.collect()
    gc.freeze()
    gc.enable()
    if session.config.getoption("loadgroup", default=False):
        lost = [item.nodeid for item in session.items if "@" not in item.nodeid]
        assert not lost, f"pytest-xdist has lost the groups of tests: {lost[:3]}"


@pytest.hookimpl(
    tryfirst=True
)  # pytest-xdist's own hook, which reads the groups, would come before it
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What one process of several runs (``-n 2 --dist loadgroup --no-loadscope-reorder``).

    All commands, all tests of the shared cluster, or else a file; the first two begin first, since they take longest.
    """
    group_by_item = {item: _group(item) for item in items}
    for item, (_, group) in group_by_item.items():
        item.add_marker(pytest.mark.xdist_group(group))
        first_tier = item.get_closest_marker("first_tier")
        if first_tier is not None and not _has_parameter(item, first_tier.args):
            item.add_marker(pytest.mark.nightly)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: group_by_item[item][0])


def _has_parameter(item: pytest.Item, values: tuple[object, ...]) -> bool:
    """Return whether a test has one of these values as a parameter, or no parameter."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return True
    return any(
        parameter in values for parameter in callspec.params.values() if isinstance(parameter, str)
    )


def _group(item: pytest.Item) -> tuple[int, str]:
    if item.path.stem in COMMANDS:
        return 0, "commands"
    if "ray_cluster" in getattr(item, "fixturenames", ()):
        return 1, "the cluster of the tests"
    return 2, item.path.relative_to(Path(__file__).parent).as_posix()


def write_tables(
    folder: Path, *, num_groups: int, rows_per_group: int, num_families: int = 4, seed: int = 0
) -> Tables:
    """Proteins of a few sequence families; proteins of one family and group are linked in a ring with chords."""
    rng = np.random.default_rng(seed)
    motifs = ["".join(rng.choice(list(RESIDUES), 12)) for _ in range(num_families)]
    proteins, edges = ["protein_id\tspecies_taxid\tsequence"], ["protein_a\tprotein_b"]
    for group in range(num_groups):
        names = [f"{group + 1}.p{row:03d}" for row in range(rows_per_group)]
        families = [row % num_families for row in range(rows_per_group)]
        for name, family in zip(names, families, strict=True):
            tail = "".join(rng.choice(list(RESIDUES), int(rng.integers(4, 20))))
            proteins.append(f"{name}\t{group + 1}\t{motifs[family]}{tail}")
        for family in range(num_families):
            members = [name for name, own in zip(names, families, strict=True) if own == family]
            for offset in (1, 2):
                edges += [
                    f"{a}\t{b}"
                    for a, b in zip(members, members[offset:] + members[:offset], strict=True)
                    if a != b
                ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "proteins.tsv").write_text("\n".join(proteins) + "\n")
    (folder / "edges.tsv").write_text("\n".join(edges) + "\n")
    return Tables([folder / "edges.tsv"], [folder / "proteins.tsv"])


@pytest.fixture
def disk_order(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Sizes of what is flushed to the disk, and targets of renames, in their order."""
    order: list[object] = []
    replace = os.replace

    def noted(source: Path, target: Path) -> None:
        order.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", lambda descriptor: order.append(os.fstat(descriptor).st_size))
    monkeypatch.setattr(os, "replace", noted)
    return order


@pytest.fixture
def answered_hangup() -> Iterator[None]:
    """SIGHUP as in a terminal: ``nohup make test`` ignores it, and so would what a test starts."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
def tiny_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """64 proteins in 2 groups, 4 families a group; sequences of 16 to 31 residues."""
    folder = tmp_path_factory.mktemp("tiny")
    tables = write_tables(folder / "raw", num_groups=2, rows_per_group=32)
    return prepare_proteins(folder / "store", tables, PrepareConfig(heldout_share=0.1))


@pytest.fixture(scope="session")
def tiny_citations(tmp_path_factory: pytest.TempPathFactory) -> LinkedTextStore:
    """64 articles of 8 schools, each of which uses half of the words of its two fields."""
    sizes = {
        "num_articles": 64,
        "num_schools": 8,
        "num_fields": 6,
        "words_per_field": 8,
        "words_per_article": 4,
    }
    return SIMULATED_CITATIONS.prepare(
        tmp_path_factory.mktemp("tiny citations"), CitationsConfig(**sizes)
    )


@pytest.fixture(scope="session")
def tiny_topics(tmp_path_factory: pytest.TempPathFactory) -> TopicStore:
    """2,400 sentences of 14 topics."""
    config = SentencesConfig(num_sentences=2400, num_topics=14, words_per_topic=12)
    return SIMULATED_TOPICS.prepare(tmp_path_factory.mktemp("tiny topics"), config)


@pytest.fixture(scope="session")
def tiny_task(tmp_path_factory: pytest.TempPathFactory) -> TaskStore:
    """Three folds, whose families do not differ: dev and test are more of what training has."""
    folder = tmp_path_factory.mktemp("tiny task")
    return SIMULATED_FOLDS.prepare(
        folder, FoldsConfig(num_folds=3, families_per_fold=3, divergence=0.0)
    )


@pytest.fixture(scope="session")
def tiny_articles(tmp_path_factory: pytest.TempPathFactory) -> ArticleStore:
    """120 articles with 1 to 3 of 9 terms; a text says the words of its terms, never their names."""
    rng = np.random.default_rng(0)
    articles = []
    for pmid in range(1, 121):
        terms = rng.choice(9, int(rng.integers(1, 4)), replace=False)
        words = [f"word{term}{letter}" for term in terms for letter in "ab"]
        texts = [" ".join(rng.permutation(words)) for _ in range(2)]
        articles.append(Article(pmid, *texts, [f"Name {'abcdefghi'[term]}" for term in terms]))
    with Draft(tmp_path_factory.mktemp("tiny articles") / "store") as draft:
        collector = ArticleCollector(draft.folder)
        collector.add(to_batch(articles))
        return collector.commit(draft, ArticleConfig(validation_share=0.2), {"parameters": {}})


@pytest.fixture(scope="session")
def tiny_sentences(tmp_path_factory: pytest.TempPathFactory) -> ClozeStore:
    """Facts of 4 relations, 8 heads and 6 tails each, stated by some hundred sentences, with the benchmark that asks."""
    config = KnowledgeConfig(num_heads=8, num_tails=6, sentences_per_fact=6)
    return SIMULATED_KNOWLEDGE.prepare(tmp_path_factory.mktemp("tiny sentences"), config)


@pytest.fixture(scope="session")
def tiny_documents(tmp_path_factory: pytest.TempPathFactory) -> DocumentStore:
    """24 documents of a few entities and relations; dev and test are the same ones under other numbers."""
    folder = tmp_path_factory.mktemp("tiny documents")
    config = DocumentsConfig(
        num_entities=6, num_facts=8, num_train=24, num_dev=1, num_test=1, facts_per_document=2
    )
    train, _, _ = write_documents(folder / "raw", config.model_copy(update={"co_mentions": 2}))
    others = []
    for number, split in ((1000, "dev"), (2000, "test")):
        text = gzip.decompress(train.read_bytes()).decode()
        others.append(folder / f"{split}.PubTator")
        others[-1].write_text(re.sub(r"^(?=[0-9])", str(number), text, flags=re.MULTILINE))
    return prepare_documents(
        folder / "store", [train], others[:1], others[1:], min_type_pair_relations=1
    )


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``mlflow.db`` without a run; MLflow takes ten seconds to lay out a new one.

    The processes of pytest-xdist share it.
    """
    from mlflow import MlflowClient

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    path = folder / "mlflow.db"
    with open(folder / "mlflow.db.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="session")
def tiny_words(tmp_path_factory: pytest.TempPathFactory) -> WordStore:
    """24 sentences; dev and test are the same ones."""
    folder = tmp_path_factory.mktemp("tiny words")
    sentences, _ = write_words(
        folder / "raw", WordsConfig(num_sentences=24, num_drugs=6, num_effects=6)
    )
    dev, test = (shutil.copy(sentences, folder / f"{split}.json.gz") for split in ("dev", "test"))
    return prepare_words(folder / "store", [sentences], dev=[Path(dev)], test=[Path(test)])
