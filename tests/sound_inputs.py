"""Readers of files that users give, and a sound file of each."""

import io
import json
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from raybio.benchmark.suite import read_suite
from raybio.core.plain_yaml import read_mapping
from raybio.core.records import read_recomputable, read_record, record_text
from raybio.core.search_space_file import load_search_space
from raybio.methods.biostransformers.formats.medline import read_medline
from raybio.methods.biostransformers.formats.tables import read_pair_table
from raybio.methods.biostransformers.zero_shot.datasets.bioasq import read_bioasq
from raybio.methods.biostransformers.zero_shot.datasets.hallmarks import read_hallmarks
from raybio.methods.biostransformers.zero_shot.datasets.pubmedqa import read_pubmedqa
from raybio.methods.contrastive_probe.benchmark.biolama import read_biolama
from raybio.methods.contrastive_probe.benchmark.medlama import read_queries
from raybio.methods.contrastive_probe.benchmark.prompts import read_prompts
from raybio.methods.contrastive_probe.benchmark.umls import read_concept_names, read_relations
from raybio.methods.contrastive_probe.sentences import read_names, read_sentences
from raybio.methods.mtb_mccl.documents.formats import read_documents
from raybio.methods.relation_graphs.formats import read_folds, read_spert
from raybio.methods.sppt.articles.formats.cane import Cane
from raybio.methods.sppt.articles.formats.ogb_mag import OgbMag
from raybio.methods.sppt.articles.formats.openalex import OpenAlex
from raybio.methods.sppt.articles.formats.tables import LinkedTables
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.downstream.config import TASKS
from raybio.methods.sppt.downstream.formats.own_tables import read_own_tables
from raybio.methods.sppt.downstream.formats.read import read_task_files
from raybio.methods.sppt.node_labels import read_node_labels
from raybio.methods.sppt.proteins.config import Config as SpptConfig
from raybio.methods.sppt.proteins.formats.fasta import read_fasta
from raybio.methods.sppt.proteins.formats.link_files import read_layout
from raybio.methods.sppt.proteins.formats.tables import Tables
from raybio.methods.sppt.proteins.formats.tree_of_life import read_interactome, read_species
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Spool
from raybio.store.retrieval_files import read_retrieval_files
from raybio.store.table_rows import read_input_rows
from raybio.store.text_lines import read_text_lines
from raybio.training.settings import TrainingConfig
from tests.methods.biostransformers.zero_shot.test_bioasq import QUESTION
from tests.methods.contrastive_probe.benchmark.test_biolama import ASPIRIN, PROMPTS
from tests.methods.contrastive_probe.benchmark.umls_files import conso_row, rel_row
from tests.methods.sppt.downstream.test_formats import write_lmdb
from tests.store.test_data_sets import save_to_disk

MEDLINE = (
    "<?xml version='1.0'?>\n<PubmedArticleSet>"
    "<PubmedArticle><MedlineCitation><PMID Version='2'>12</PMID>"
    "<DateCompleted><Year>2001</Year></DateCompleted>"
    "<Article><ArticleTitle>[<i>Rats</i> and men].</ArticleTitle><Abstract>"
    "<AbstractText Label='METHODS'>We ran.</AbstractText></Abstract></Article>"
    "<MeshHeadingList><MeshHeading><DescriptorName UI='D1' MajorTopicYN='N'>Rats</DescriptorName>"
    "<QualifierName UI='Q1' MajorTopicYN='Y'>genetics</QualifierName></MeshHeading>"
    "</MeshHeadingList></MedlineCitation></PubmedArticle>"
    "<DeleteCitation><PMID Version='1'>13</PMID></DeleteCitation></PubmedArticleSet>"
)
PUBTATOR = (
    "1|t|BRAF in melanoma.\n1|a|It binds.\n1\t0\t4\tBRAF\tGene\t673,7\n"
    "1\t8\t16\tmelanoma\tDisease\tD1\n1\tBind\t673\tD1\tNovel\n\n2|t|Nothing|here\n2|a|\n"
)
BIOC_XML = (
    "<?xml version='1.0'?><collection><document><id>1</id><passage><offset>0</offset>"
    "<text>BRAF in melanoma.</text><annotation><infon key='identifier'>673,7</infon>"
    "<infon key='type'>Gene</infon><location offset='0' length='4'/><text>BRAF</text></annotation>"
    "</passage><relation><infon key='entity1'>673</infon><infon key='entity2'>7</infon>"
    "<infon key='type'>Bind</infon></relation></document></collection>"
)
BIOC_JSON = {
    "documents": [
        {
            "id": 1,
            "passages": [
                {
                    "offset": 0,
                    "text": "BRAF in melanoma.",
                    "annotations": [
                        {
                            "infons": {"type": "Gene", "identifier": "673,7"},
                            "text": "BRAF",
                            "locations": [{"offset": 0, "length": 4}],
                        }
                    ],
                }
            ],
            "relations": [{"infons": {"type": "Bind", "entity1": "673", "entity2": "7"}}],
        }
    ]
}
DOCRED = [
    {
        "title": "Bern",
        "sents": [["Bern", "is", "in"], ["Switzer", "land"]],
        "vertexSet": [
            [{"name": "Switzer land", "sent_id": 1, "pos": [0, 2], "type": "LOC"}],
            [{"name": "Bern", "sent_id": 0, "pos": [0, 1], "type": "LOC"}],
        ],
        "labels": [{"h": 1, "t": 0, "r": "P17", "evidence": [0]}],
    }
]
SPERT = [
    {
        "tokens": ["Aspirin", "causes", "an", "ulcer"],
        "entities": [
            {"type": "Drug", "start": 0, "end": 1},
            {"type": "Adverse-Effect", "start": 3, "end": 4},
        ],
        "relations": [{"type": "Adverse-Effect", "head": 1, "tail": 0}],
        "orig_id": 7,
    }
]
FOLDS = {"split_1": {"train set": ["1", "2"], "test set": ["3"]}}
QUESTIONS = {
    "21645374": {
        "QUESTION": "Do mitochondria play a role?",
        "CONTEXTS": ["They do.", "They may."],
        "LABELS": ["BACKGROUND", "RESULTS"],
        "MESHES": ["Mitochondria"],
        "YEAR": "2011",
        "reasoning_required_pred": "yes",
        "reasoning_free_pred": "yes",
        "final_decision": "yes",
        "LONG_ANSWER": "Results depicted.",
    }
}
SETTINGS = "seed: 3\noptim:\n  peak_lr: 1.0e-4\n  schedule: linear\nschedule: {max_steps: 10}\nprecision: fp32\n"
TABLE = 'id,text\n1,one word\n2,"two, words"\n3,\n'
LINES = "1\tone word\n2\ttwo words\n\n3\tthree\n"
PAIRS = "12\tTitle of it\tAbstract of it\tRats\n13\tOther\t\tMice\n"
FASTA = ">a|1 first\nMKV\nLAT*\n\n>b second\nACDEFGHIK\n>c\n\n"
LINKS = "protein1 protein2 combined_score\n9606.A 9606.B 900\n9606.B 9606.C 150\n"


OPENALEX = [
    {
        "id": f"https://openalex.org/W{number}",
        "ids": {"openalex": f"https://openalex.org/W{number}", "mag": number + 7},
        "title": f"Title {number}",
        "language": "en",
        "publication_date": "2020-05-01",
        "abstract_inverted_index": {"the": [0, 2], "cat": [1], "dog": [3]},
        "referenced_works": ["https://openalex.org/W1"],
    }
    for number in (1, 2)
]
MAG_INDEX = {"IndexLength": 3, "InvertedIndex": {"the": [0, 2], "cat": [1]}}
OWN_TABLE = "text,label,split\nA cell.,yes,train\nB cell.,no,train\nC cell.,yes,dev\nD,no,test\n"
TREE_SPECIES = "Species_ID\tCompact_name\tOfficial_NCBI_name\n9606\thuman\tHomo sapiens\n"
MEDLAMA = (
    "head_cui,head_name,rel,tail_names,tail_cuis\n"
    "C1,aspirin,may_treat,pain || fever,C2 || C3\nC4,ibuprofen,may_treat,pain,C2\n"
)
MRREL = rel_row("C1", "may_treat", "C2 A2") + rel_row("C1", "may_treat", "C3", suppress="O")
MRCONSO = conso_row("C1", "A1", "aspirin") + conso_row("C2", "A2", "Schmerz", lat="GER")
CORPUS = '{"_id": "d1", "title": "One", "text": "A text."}\n{"_id": "d2", "text": "Another."}\n'
QUERIES = '{"_id": "q1", "text": "Which?"}\n{"_id": "q2", "text": "What?"}\n'
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t2\nq2\td1\t0\n"
PROTEINS = 'id,taxid,sequence\n1.a,1,MKV\n1.b,1,"LAT"\n1.c,1,ACD\n'
SCORED_LINKS = "protein1\tprotein2\tscore\n1.a\t1.b\t0.9\n1.b\t1.c\t0.5\n"
ARTICLES = "id\ttitle\tabstract\tdate\na1\tOne\tA cat.\t2001-02\na2\tTwo\t\t2002\n"
CITATIONS = "citing;cited\na1;a2\na2;a1\n"
LABELS = "id\tlabel\n1.a\tyes\n1.b\tno\n"
PROMPT_TABLE = "pid,default_prompt,human_prompt\nmay_treat,,[X] may treat [Y] .\n"
SCIBERT = '{"text": "A cell.", "label": "yes"}\n{"text": "B cell.", "label": "no"}\n'
TAPE = {"primary": "MKV", "stability_score": [0.5], "id": "0"}
GENOTYPES = "aaMutations\tmedianBrightness\nSA108D\t3.5\n\t3.7\n"
SCOP = ">d1dlya_ a.1.1.1\nMKV\n>d2dlya_ a.1.2.1\nLAT\n>d3dlya_ a.1.3.1\nACD\n"
SUITE = (
    "title: Mine\ntasks:\n  - {task: links, name: demo, demo: sppt_protein}\n"
    "  - {task: retrieval, name: own, corpus: c.jsonl, queries: q.jsonl, qrels: q.tsv}\n"
)
SPACE = (
    "method: sppt_protein\nmetric: val/link_ndcg\nmode: max\n"
    "budget: {num_trials: 12, max_steps: 2000, grace_steps: 1000}\nsearch: {kind: optuna}\n"
    "space:\n  objective.lambda_spml: {choice: [0.0, 0.5]}\n"
    "  optim.peak_lr: {log_uniform: [1.0e-5, 1.0e-3]}\n"
)


NUM_AT_MOST = 100_000
"""Inputs of a reader in ``make fuzz``."""


class Reader(NamedTuple):
    """A reader of a file.

    Attributes:
        read: reads a path.
        name: of the file, in a folder of its own.
        sound: its content: text, bytes, or what JSON says.
        write_others: writes the files that belong to it into this folder.
        num_at_most: inputs in ``make fuzz``; fewer than ``NUM_AT_MOST`` where one takes over 3 ms.
        skips: damaged lines are skipped, so that no file is refused.
        sign: returns the file of a changed content of ``sound``, with a checksum that fits; None: the
            bytes of the file are changed.
    """

    read: Callable[[Path], Any]
    name: str
    sound: Any
    write_others: Callable[[Path], object] = lambda folder: None
    num_at_most: int = NUM_AT_MOST
    skips: bool = False
    sign: Callable[[Any], bytes] | None = None

    @property
    def content(self) -> bytes:
        """The sound file."""
        if self.sign is not None:
            return self.sign(self.sound)
        if isinstance(self.sound, bytes):
            return self.sound
        if isinstance(self.sound, Path):
            return self.sound.read_bytes()
        text = self.sound if isinstance(self.sound, str) else json.dumps(self.sound)
        return text.encode()


def json_lines(*records: Any) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


def read_corpus(source: Any, folder: Path) -> object:
    """Read articles as ``prepare_linked_texts`` does, in a folder that is there."""
    with Spool(folder / "spool") as spool:
        return source.read(spool, Quarantine())


def read_mag(folder: Path) -> object:
    return read_corpus(OgbMag(folder, [folder / "abstracts.txt"]), folder)


def write_mag(folder: Path) -> None:
    for name, text in {
        "mapping/paper_entidx2name.csv": "ent idx,ent name\n0,12\n1,13\n",
        "raw/relations/paper___cites___paper/edge.csv": "0,1\n",
        "raw/node-feat/paper/node_year.csv": "2001\n2002\n",
        "abstracts.txt": f"12\t{json.dumps(MAG_INDEX)}\n13\t{json.dumps(MAG_INDEX)}\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def write_torch_geometric_mag(folder: Path) -> None:
    """Write OGB-MAG without ids, whose abstracts are the authors' CSV."""
    write_mag(folder)
    (folder / "mapping" / "paper_entidx2name.csv").unlink()
    (folder / "raw" / "num-node-dict.csv").write_text("author,paper\n3,2\n")
    (folder / "abstracts.txt").write_text('ent idx,abstract\n0,"A cat, here"\n1,A dog\n')


def write_cane(folder: Path) -> None:
    (folder / "data.txt").write_text("one\ntwo\nthree\n")
    (folder / "graph.txt").write_text("0\t1\n2\t1\n")


def write_biolama(folder: Path) -> None:
    for name, record in (
        ("triples_processed/P1/test.jsonl", ASPIRIN),
        ("prompts/manual.jsonl", PROMPTS[0]),
    ):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(json_lines(record))


def write_retrieval(folder: Path) -> None:
    for name, text in (("corpus.jsonl", CORPUS), ("queries.jsonl", QUERIES), ("test.tsv", QRELS)):
        (folder / name).write_text(text)


def read_retrieval(path: Path) -> object:
    return read_retrieval_files(
        *(path.with_name(name) for name in ("corpus.jsonl", "queries.jsonl", "test.tsv"))
    )


def write_data_set(folder: Path) -> None:
    save_to_disk(folder / "saved", {"id": ["a", "b"], "text": ["one", "two"]})


def parquet_of_texts() -> bytes:
    content = io.BytesIO()
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["one", "two"]}), content)
    return content.getvalue()


def parquet_of_labels() -> bytes:
    content = io.BytesIO()
    labels = pa.array(["yes", "no"]).dictionary_encode()
    pq.write_table(pa.table({"text": ["A", "B"], "label": labels, "split": ["train"] * 2}), content)
    return content.getvalue()


def arrow_of_texts() -> bytes:
    content = io.BytesIO()
    table = pa.table({"id": ["a"], "text": ["one"]})
    with pa.ipc.new_stream(content, table.schema) as writer:
        writer.write_table(table)
    return content.getvalue()


def hallmarks_archive() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, text in (
            ("text/7.txt", "One .\n"),
            ("labels/7.txt", "<Resisting cell death--Apoptosis "),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return content.getvalue()


def read_proteins(folder: Path) -> object:
    """Read links and proteins as ``prepare_proteins`` does."""
    with Spool(folder / "spool") as spool:
        source = Tables([folder / "links.tsv"], [folder / "proteins.csv"])
        return source.read(spool, Quarantine(), PrepareConfig())


def write_proteins(folder: Path) -> None:
    (folder / "proteins.csv").write_text(PROTEINS)
    (folder / "links.tsv").write_text(SCORED_LINKS)


def read_articles(folder: Path) -> object:
    return read_corpus(LinkedTables(folder / "articles.tsv", folder / "citations.csv"), folder)


def write_articles(folder: Path) -> None:
    (folder / "articles.tsv").write_text(ARTICLES)
    (folder / "citations.csv").write_text(CITATIONS)


def flip_archive() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in (
            ("sequences", ">a\nMKV\n>b\nLATM\n"),
            ("sampled", ">a SET=train VALIDATION=True\nHEC\n>b SET=test VALIDATION=False\nHHHH\n"),
            ("mask", ">a\n111\n>b\n1010\n"),
        ):
            archive.writestr(f"splits/{name}.fasta", text)
    return content.getvalue()


def read_lmdb(path: Path) -> object:
    """Read a file of TAPE's with this pickle as its only record."""
    # Of a damaged page the C library may crash: its format is not under test, the pickles are.
    write_lmdb(path.with_name("stability_train.lmdb"), [path.read_bytes()])
    return list(read_task_files("stability", path.parent).examples)


def read_task(task: str) -> Callable[[Path], Any]:
    return lambda path: list(read_task_files(task, path).examples)


def read_own(task: str) -> Callable[[Path], Any]:
    return lambda path: list(read_own_tables(TASKS[task], path).examples)


def read_texts(path: Path) -> list[Any]:
    return list(read_input_rows(path, "text"))


def settings(path: Path) -> TrainingConfig:
    return TrainingConfig.from_mapping(read_mapping(path))


INPUTS = {
    "MEDLINE": Reader(lambda path: list(read_medline(path, Quarantine())), "a.xml", MEDLINE),
    "PubTator": Reader(lambda path: list(read_documents(path, Quarantine())), "a.txt", PUBTATOR),
    "BioC XML": Reader(lambda path: list(read_documents(path, Quarantine())), "a.xml", BIOC_XML),
    "BioC JSON": Reader(lambda path: list(read_documents(path, Quarantine())), "a.json", BIOC_JSON),
    "DocRED": Reader(lambda path: list(read_documents(path, Quarantine())), "a.json", DOCRED),
    "SpERT": Reader(lambda path: read_spert(path, Quarantine(), set()), "a.json", SPERT),
    "folds": Reader(read_folds, "a.json", FOLDS),
    "PubMedQA": Reader(read_pubmedqa, "a.json", QUESTIONS),
    "settings": Reader(settings, "a.yaml", SETTINGS),
    "CSV": Reader(lambda path: list(read_input_rows(path, "text")), "a.csv", TABLE),
    "JSON lines": Reader(
        lambda path: list(read_input_rows(path, "text")), "a.jsonl", '{"id": 1, "text": "a"}\n' * 3
    ),
    "text lines": Reader(lambda path: list(read_text_lines(path, Quarantine())), "a.txt", LINES),
    "articles and terms": Reader(
        lambda path: list(read_pair_table(path, Quarantine())), "a.tsv", PAIRS
    ),
    "FASTA": Reader(lambda path: list(read_fasta(path, Quarantine())), "a.fa", FASTA),
    "links": Reader(read_layout, "a.txt", LINKS),
    "record": Reader(
        lambda path: read_record(path, "run"), "a.json", record_text("run", {"a": [1, None]})
    ),
    "record that is written again": Reader(
        lambda path: read_recomputable(path, "outcome"), "a.json", record_text("outcome", {"a": 1})
    ),
    "OpenAlex": Reader(
        lambda path: read_corpus(OpenAlex([path]), path.parent),
        "works.jsonl",
        json_lines(*OPENALEX),
    ),
    "abstracts of MAG": Reader(
        lambda path: read_mag(path.parent),
        "abstracts.txt",
        f"12\t{json.dumps(MAG_INDEX)}\n13\t{json.dumps(MAG_INDEX)}\n",
        write_mag,
    ),
    "abstracts of MAG's papers by OpenAlex": Reader(
        lambda path: read_mag(path.parent),
        "abstracts.txt",
        json_lines(*(work | {"ids": {"mag": 12}} for work in OPENALEX)),
        write_mag,
    ),
    "papers of MAG": Reader(
        lambda path: read_mag(path.parents[1]),
        "mapping/paper_entidx2name.csv",
        "ent idx,ent name\n0,12\n1,13\n",
        write_mag,
    ),
    "citations of MAG": Reader(
        lambda path: read_mag(path.parents[3]),
        "raw/relations/paper___cites___paper/edge.csv",
        "0,1\n1,0\n",
        write_mag,
    ),
    "years of MAG": Reader(
        lambda path: read_mag(path.parents[3]),
        "raw/node-feat/paper/node_year.csv",
        "2001\n2002\n",
        write_mag,
    ),
    "table of MAG's abstracts": Reader(
        lambda path: read_mag(path.parent),
        "abstracts.txt",
        'ent idx,abstract\n0,"A cat, here"\n1,A dog\n',
        write_torch_geometric_mag,
    ),
    "texts of CANE": Reader(
        lambda path: read_corpus(Cane(path.parent), path.parent),
        "data.txt",
        "one\ntwo\nthree\n",
        write_cane,
    ),
    "links of CANE": Reader(
        lambda path: read_corpus(Cane(path.parent), path.parent),
        "graph.txt",
        "0\t1\n2\t1\n",
        write_cane,
    ),
    "species of the Tree of life": Reader(
        lambda path: read_species(path, Quarantine()), "species.tsv", TREE_SPECIES
    ),
    "interactome of the Tree of life": Reader(
        lambda path: read_interactome(path, Quarantine()), "9606.txt", "A B\nB C\nC A\n"
    ),
    "own texts with classes": Reader(read_own("text_classification"), "a.csv", OWN_TABLE),
    "own proteins with numbers": Reader(
        read_own("protein_regression"), "a.tsv", "sequence\tlabel\nMKV\t1.5\nLAT\t-2e-1\n"
    ),
    "own residues": Reader(
        read_own("residue_tagging"), "a.csv", "sequence,label\nMKV,a b a\nLAT,b b b\n"
    ),
    "Parquet": Reader(read_texts, "a.parquet", parquet_of_texts()),
    "folder of datasets": Reader(
        lambda path: read_texts(path.parent),
        "saved/data-00000-of-00002.arrow",
        arrow_of_texts(),
        write_data_set,
    ),
    "state of a folder of datasets": Reader(
        lambda path: read_texts(path.parent),
        "saved/state.json",
        {"_data_files": [{"filename": "data-00000-of-00002.arrow"}], "_split": None},
        write_data_set,
    ),
    "MedLAMA": Reader(lambda path: list(read_queries(path)), "may_treat_2.csv", MEDLAMA),
    "triples of BioLAMA": Reader(
        lambda path: read_biolama(path.parents[2]),
        "triples_processed/P1/test.jsonl",
        json_lines(ASPIRIN, ASPIRIN | {"sub_label": "ibuprofen", "sub_uri": "D2"}),
        write_biolama,
    ),
    "prompts of BioLAMA": Reader(
        lambda path: read_biolama(path.parents[1]),
        "prompts/manual.jsonl",
        json_lines(*PROMPTS),
        write_biolama,
    ),
    "relations of UMLS": Reader(
        lambda path: read_relations(path, {"may_treat"}, {"NCI"}, Quarantine()),
        "MRREL.RRF",
        MRREL,
    ),
    "names of UMLS": Reader(
        lambda path: read_concept_names(
            path, pa.array(["A1", "A2"]), pa.array(["C1", "C2"]), Quarantine()
        ),
        "MRCONSO.RRF",
        MRCONSO,
    ),
    "BioASQ": Reader(read_bioasq, "7B1_golden.json", {"questions": [QUESTION]}),
    "Hallmarks of Cancer": Reader(read_hallmarks, "hoc.tar", hallmarks_archive()),
    "corpus of BEIR": Reader(read_retrieval, "corpus.jsonl", CORPUS, write_retrieval),
    "queries of BEIR": Reader(read_retrieval, "queries.jsonl", QUERIES, write_retrieval),
    "judgments of BEIR": Reader(read_retrieval, "test.tsv", QRELS, write_retrieval),
    "table of proteins": Reader(
        lambda path: read_proteins(path.parent),
        "proteins.csv",
        PROTEINS,
        write_proteins,
        num_at_most=5_000,
    ),
    "table of links": Reader(
        lambda path: read_proteins(path.parent),
        "links.tsv",
        SCORED_LINKS,
        write_proteins,
        num_at_most=3_000,
    ),
    "table of articles": Reader(
        lambda path: read_articles(path.parent),
        "articles.tsv",
        ARTICLES,
        write_articles,
        num_at_most=20_000,
    ),
    "table of citations": Reader(
        lambda path: read_articles(path.parent),
        "citations.csv",
        CITATIONS,
        write_articles,
        num_at_most=10_000,
    ),
    "labels of nodes": Reader(
        lambda path: read_node_labels(path, pa.array(["1.a", "1.b", "1.c"])), "a.tsv", LABELS
    ),
    "own sets of classes": Reader(
        read_own("text_multilabel"), "a.jsonl", '{"text": "a", "label": "x; y"}\n'
    ),
    "own texts in Parquet": Reader(
        read_own("text_classification"), "a.parquet", parquet_of_labels()
    ),
    "SciBERT": Reader(lambda path: read_task("paper_field")(path.parent), "train.txt", SCIBERT),
    "TAPE": Reader(
        lambda path: read_task("stability")(path.parent), "stability_train.json", [TAPE, TAPE]
    ),
    "record of TAPE's LMDB": Reader(
        read_lmdb, "record.pickle", pickle.dumps(TAPE), num_at_most=20_000
    ),
    "FLIP's zip": Reader(read_task("secondary_structure"), "splits.zip", flip_archive()),
    "FLIP's table": Reader(
        read_task("fluorescence"), "a.csv", "sequence,target,set,validation\nMKV,1.5,train,True\n"
    ),
    "GFP": Reader(read_task("fluorescence"), "a.tsv", GENOTYPES),
    "SCOP": Reader(read_task("remote_homology"), "a.fa", SCOP),
    "prompts": Reader(
        lambda path: read_prompts([path.parent], "human"), "prompts.csv", PROMPT_TABLE
    ),
    "sentences": Reader(
        lambda path: read_sentences(path, Quarantine()), "a.txt", "One two three.\nFour five.\n"
    ),
    "names": Reader(read_names, "a.txt", "aspirin\nibuprofen\n"),
    "suite": Reader(lambda path: read_suite(str(path), path.parent), "mine.yaml", SUITE),
    "search space": Reader(
        lambda path: load_search_space(path, {"sppt_protein": SpptConfig}), "mine.yaml", SPACE
    ),
}
