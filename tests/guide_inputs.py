"""Small files of the kinds and names that the commands of the guides read."""

import gzip
import json
import shutil
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import yaml

from raybio.encoders.sentence_folder import write_sentence_files
from raybio.encoders.word_tokenizer import build_word_tokenizer
from raybio.methods.biostransformers.demo import LiteratureConfig, write_literature
from raybio.methods.contrastive_probe.demo import KnowledgeConfig, write_knowledge
from raybio.methods.mtb_mccl.documents.demo import DocumentsConfig, write_documents
from raybio.methods.relation_graphs.demo import WordsConfig, write_words
from raybio.methods.sppt.articles.demo import CitationsConfig, write_citations
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.downstream.demo import FoldsConfig, write_folds
from raybio.methods.sppt.downstream.formats.read import read_task_files
from raybio.methods.sppt.downstream.prepare import prepare_task
from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.proteins.demo import SimulationConfig, write_tree_of_life
from raybio.methods.sppt.proteins.encoder import build_protein_encoder
from raybio.methods.sppt.proteins.formats.tables import Tables
from raybio.methods.sppt.synthetic.demo import SentencesConfig, write_sentences
from tests.conftest import write_tables
from tests.documentation import write_shown_files
from tests.encoders.tiny_text import save_tiny, save_with_head, tiny_model
from tests.golden_records import make_documents
from tests.jobs.test_finetune_job import write_task
from tests.methods.biostransformers.zero_shot.test_bioasq import QUESTION, batch
from tests.methods.biostransformers.zero_shot.test_hallmarks import archive
from tests.methods.biostransformers.zero_shot.test_pubmedqa import RECORD, write
from tests.methods.contrastive_probe.baselines.test_generative import save_generative
from tests.methods.contrastive_probe.benchmark.test_biolama import ASPIRIN, source
from tests.methods.contrastive_probe.benchmark.umls_files import write_umls
from tests.methods.mtb_mccl.several_relations import labeled_documents
from tests.methods.sppt.articles.test_formats import write_cane, write_mag
from tests.methods.sppt.articles.test_openalex import simulate, write_works
from tests.methods.sppt.downstream.test_formats import write_tape
from tests.methods.sppt.proteins.test_encoder import save, tiny
from tests.paths import ROOT


def probe_inputs(folder: Path) -> None:
    sentences, benchmark = write_knowledge(
        folder / "raw", KnowledgeConfig(num_heads=6, num_tails=6)
    )
    shutil.copy(sentences, folder)
    for name in ("A.txt", "B.txt"):
        (folder / name).write_bytes(gzip.decompress(sentences.read_bytes()))
    shutil.copytree(benchmark, folder / "MEDLAMA")
    for table in benchmark.glob("*.csv"):
        if table.name != "prompts.csv":
            shutil.copy(table, folder / "MEDLAMA" / f"{table.stem}_hard.csv")
    for name in ("CTD", "wikidata", "umls"):
        source(folder / "BIOLAMA" / name, ASPIRIN)
    write_umls(folder / "META_DIR")
    save_with_head(folder / "tiny", "bert")
    save_generative(folder / "generative", "t5")


def article_inputs(folder: Path) -> None:
    write_literature(folder / "baseline", LiteratureConfig(num_articles=200, num_files=2))
    rows = [
        f"{pmid}\tTitle {pmid % 7}\tText {pmid % 5}\tTerm {pmid % 9}\n" for pmid in range(1, 200)
    ]
    (folder / "articles.tsv").write_text("".join(rows))
    (folder / "articles.tsv.gz").write_bytes(gzip.compress("".join(rows).encode()))
    (folder / "texts.txt").write_text("Asthma in early life.\nRisk factors.\n")
    zero_shot_inputs(folder / "DIR")
    save_tiny(folder / "tiny")


def zero_shot_inputs(folder: Path) -> None:
    """Write the three tasks of zero-shot ranking: a few documents and questions of each."""
    for name in ("hallmarks_of_cancer", "pubmedqa", "bioasq_7b"):
        (folder / name).mkdir(parents=True)
    labels = "<Resisting cell death--Apoptosis <Cellular energetics--"
    documents = {f"text_{pmid}": "One .\nTwo .\n" for pmid in range(1, 5)}
    of_documents = {f"labels_{pmid}": labels for pmid in range(1, 5)}
    packed = archive(folder / "hallmarks_of_cancer", **documents, **of_documents)
    packed.rename(packed.with_name("hoc_text_labels.tar.gz"))
    questions = {
        str(pmid): RECORD | {"QUESTION": f"Does {pmid} help?", "final_decision": "yes"}
        for pmid in range(20, 30)
    }
    write(folder / "pubmedqa" / "ori_pqal.json", questions)
    write(folder / "pubmedqa" / "test_ground_truth.json", dict.fromkeys(questions, "yes"))
    for number in range(1, 6):
        question = QUESTION | {"id": f"q{number}", "body": f"Is {number} effective?"}
        batch(folder / "bioasq_7b" / f"7B{number}_golden.json", question)


def document_inputs(folder: Path) -> None:
    sizes = DocumentsConfig(num_entities=6, num_facts=8, num_train=40, num_dev=10, num_test=10)
    files = write_documents(folder / "raw", sizes)
    for file, name in zip(files, ("Train", "Dev", "Test"), strict=True):
        shutil.copy(file, folder / f"{name}.PubTator.gz")
    labeled = gzip.decompress(files[0].read_bytes())
    for name in ("labeled", "new", "mine"):
        (folder / f"{name}.PubTator").write_bytes(labeled)
    (folder / "rel_info.json").write_text(json.dumps({"P1": "founded by", "P2": "leader"}))
    for seed, name in enumerate(("train_revised", "dev_revised", "test_revised", "train_distant")):
        (folder / f"{name}.json").write_text(json.dumps(labeled_documents(24, seed)))
    save_tiny(folder / "tiny")


def sentence_inputs(folder: Path) -> None:
    sizes = WordsConfig(num_sentences=40, num_folds=2, num_drugs=8, num_effects=8)
    sentences, folds = write_words(folder / "raw", sizes)
    shutil.copy(sentences, folder / "ade_full_spert.json.gz")
    shutil.copy(folds, folder / "cv_splits.json.gz")
    rows = json.loads(gzip.decompress(sentences.read_bytes()))
    parts = {"train": rows[:24], "dev": rows[24:32], "test": rows[32:], "all": rows}
    for name, part in parts.items():
        (folder / f"{name}.json").write_text(json.dumps(part))
    lines = [" ".join(row["tokens"]) for row in rows[:5]]
    (folder / "sentences.txt").write_text("\n".join(lines) + "\n")
    # Whole words: the sentences have more letters than a tiny encoder reads.
    words = Counter(word for row in rows for word in row["tokens"])
    tokenizer = build_word_tokenizer(words, size=400)
    tokenizer.save_pretrained(folder / "tiny")
    tiny_model("bert", len(tokenizer), tokenizer.pad_token_id).save_pretrained(folder / "tiny")


def protein_inputs(folder: Path) -> None:
    """Write proteins and their links in several forms, with ids as UniProt's, and a protein encoder."""
    tables = write_tables(folder / "raw", num_groups=1, rows_per_group=64)
    links, proteins = (
        [line.replace("1.p", "P00").split("\t") for line in path.read_text().splitlines()[1:]]
        for path in (*tables.edges, *tables.proteins)
    )
    named = [(name, sequence) for name, _, sequence in proteins]
    (folder / "edges.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in links))
    (folder / "edges.csv").write_text("".join(f"{a},{b}\n" for a, b in links))
    (folder / "proteins.fasta").write_text(
        "".join(f">{name} OX=9606\n{text}\n" for name, text in named)
    )
    headers = [f">sp|{name}|N{name}_HUMAN Protein OS=Homo sapiens OX=9606" for name, _ in named]
    records = [f"{header}\n{text}\n" for header, (_, text) in zip(headers, named, strict=True)]
    (folder / "uniprot.fasta").write_text("".join(records))
    string = "9606.protein.{}.v12.0.{}.gz"
    scored = "".join(f"9606.{a} 9606.{b} 900\n" for a, b in links)
    header = "protein1 protein2 combined_score\n"
    (folder / string.format("links", "txt")).write_bytes(gzip.compress((header + scored).encode()))
    fasta = "".join(f">9606.{name}\n{text}\n" for name, text in named).encode()
    (folder / string.format("sequences", "fa")).write_bytes(gzip.compress(fasta))
    labels = "".join(f"{name}\tfamily {row % 4}\n" for row, (name, _) in enumerate(named))
    (folder / "labels.tsv").write_text("id\tlabel\n" + labels)
    save(build_protein_encoder(tiny("tape"), seed=0), folder / "tape")


def started_inputs(folder: Path) -> None:
    """Write what getting_started.md and the pages after it read: proteins, a store of them, a retrieval task."""
    protein_inputs(folder)
    store = Tables([folder / "edges.tsv"], [folder / "proteins.fasta"])
    prepare_proteins(folder / "STORE", store, PrepareConfig())
    save(build_protein_encoder(tiny("esm"), seed=0), folder / "esm")
    shutil.copy(folder / "proteins.fasta", folder / "new.fasta")
    for name, key in (("corpus", "d"), ("queries", "q")):
        rows = [{"_id": f"{key}{row}", "text": f"Text {row} of {name}."} for row in range(5)]
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines)
    pairs = "".join(f"q{row}\td{row}\t1\n" for row in range(5))
    (folder / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + pairs)
    tiny_text = Path(save_tiny(folder / "tiny"))
    width = json.loads((tiny_text / "config.json").read_text())["hidden_size"]
    write_sentence_files(tiny_text, width=width, pooling="mean", max_tokens=32)
    write_shown_files(folder, (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8"))


def sweep_inputs(folder: Path) -> None:
    """Write a store of proteins, one of documents, labeled proteins, and encoders of both kinds."""
    started_inputs(folder)
    make_documents(folder / "documents").rename(folder / "DOCUMENTS")
    rng = np.random.default_rng(0)
    sequences = ["".join(rng.choice(list("ACDEFGHIKL"), 12)) for _ in range(40)]
    rows = "".join(f"{sequence},{row}\n" for row, sequence in enumerate(sequences))
    (folder / "table.csv").write_text("sequence,label\n" + rows)


def sppt_inputs(folder: Path) -> None:
    protein_inputs(folder)
    sizes = SimulationConfig(num_species=2, num_proteins=60, num_links=200)
    snap = write_tree_of_life(folder, sizes, one_fasta=True)
    snap.interactomes.rename(folder / "DIR")
    snap.sequences.rename(folder / "FASTA_OR_DIR")
    citations = CitationsConfig(
        num_articles=64, num_schools=8, num_fields=6, words_per_field=8, words_per_article=4
    )
    cited = write_citations(folder / "raw", citations)
    for path in (cited.articles, cited.citations):
        (folder / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    (folder / "cora").mkdir()
    ring = [f"{row}\t{(row + 1) % 20}" for row in range(20)]
    write_cane(folder / "cora", [f"text of {row}" for row in range(20)], ring)
    works = simulate()
    write_works(folder / "openalex", {"2026-01-01": works})
    mag_ids = [str(work["ids"]["mag"]) for work in works]
    write_mag(folder / "mag", mag_ids, [link.replace("\t", ",") for link in ring])
    sizes = SentencesConfig(num_sentences=2400, num_topics=14, words_per_topic=12)
    sentences = write_sentences(folder / "raw", sizes)
    (folder / "sentences.txt").write_bytes(gzip.decompress(sentences.read_bytes()))
    settings = {"num_layers": 1, "width": 16, "num_heads": 2, "ffn_width": 32}
    (folder / "my.yaml").write_text(yaml.safe_dump({"encoder": settings}))
    task_inputs(folder)
    save_tiny(folder / "tiny")


def task_inputs(folder: Path) -> None:
    """Write FLIP's zip, TAPE's four tasks in one folder, and a task of texts."""
    rng = np.random.default_rng(0)
    sequences = ["".join(rng.choice(list("ACDEFGHIKL"), 12)) for _ in range(30)]
    splits = [
        "SET=train VALIDATION=False",
        "SET=train VALIDATION=True",
        "SET=test VALIDATION=False",
    ]
    with zipfile.ZipFile(folder / "splits.zip", "w") as flip:
        for name, letters in (("sequences", "ACDEFGHIKL"), ("sampled", "CHE"), ("mask", "1")):
            records = [
                f">p{row} {splits[row % 3]}\n{text if name == 'sequences' else letters * (12 // len(letters))}\n"
                for row, text in enumerate(sequences)
            ]
            flip.writestr(f"splits/{name}.fasta", "".join(records))
    files = write_folds(folder / "FILES", FoldsConfig(num_folds=3, families_per_fold=3))
    for task, label, test in (
        ("fluorescence", "log_fluorescence", "test"),
        ("stability", "stability_score", "test"),
        ("secondary_structure", "ss3", "cb513"),
    ):
        rows = [
            {"primary": text, label: [0, 1, 2] * 4 if label == "ss3" else [float(row)]}
            for row, text in enumerate(sequences)
        ]
        write_tape(files, task, {"train": rows[:20], "valid": rows[20:25], test: rows[25:]})
    write_task(folder / "TEXTS")
    prepare_task(folder / "TASK", "acl_arc", *read_task_files("acl_arc", folder / "TEXTS"))
