"""Readers of files that users give: whatever the bytes, they return, skip records, or say why not.

Inputs are sound files with seeded mutations.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from raybio.core.config import read_mapping
from raybio.core.errors import RaybioError
from raybio.core.records import read_recomputable, read_record, record_text
from raybio.methods.biostransformers.formats.medline import read_medline
from raybio.methods.biostransformers.formats.tables import read_pair_table
from raybio.methods.biostransformers.zero_shot.datasets.pubmedqa import read_pubmedqa
from raybio.methods.mtb_mccl.documents.formats import read_documents
from raybio.methods.relation_graphs.formats import read_folds, read_spert
from raybio.methods.sppt.proteins.formats.fasta import read_fasta
from raybio.methods.sppt.proteins.formats.link_files import read_layout
from raybio.store.quarantine import Quarantine
from raybio.store.table_rows import read_input_rows
from raybio.store.text_lines import read_text_lines
from raybio.training.settings import TrainingConfig

PIECES = [
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1f\x8b", b"\r", b"\n", b"\t", b",", b";", b" ", b'"', b"'",
    b"|", b"-1", b"1e999", b"NaN", b"9" * 25, b"9" * 5000, b"null", b"true", b"[]", b"{}", b"[" * 3000,
    b'{"a":' * 3000, b"]", b"}", b":", b"<", b"</", b"/>", b"&x;", b"&#0;", b"<!DOCTYPE x [", b"<?x?>",
    b"\\ud800", b"\\u0000", b"\xed\xa0\x80", "\u2028é\U0001f9ec".encode(), b">", b"*", b"&a *a", b"!!python/x",
    b"-", b"\x0b\x0c\x1c\x85",
]  # fmt: skip
"""Bytes that mean something in one of the formats, or nothing in any."""

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


class Reader(NamedTuple):
    """A reader, the name of its file, and a sound one."""

    read: Callable[[Path], Any]
    name: str
    sound: Any


def settings(path: Path) -> TrainingConfig:
    return TrainingConfig.from_mapping(read_mapping(path))


READERS = {
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
}


def mutated(sound: bytes, rng: np.random.Generator) -> bytes:
    """Return a file with one to three changes, gzipped now and then and then perhaps torn."""
    content = sound
    for _ in range(int(rng.integers(1, 4))):
        first, end = sorted(rng.integers(0, len(content) + 1, 2).tolist())
        end = min(end, first + int(rng.integers(0, 40)))
        part = content[first:end]
        piece = PIECES[int(rng.integers(len(PIECES)))]
        flipped = bytes(byte ^ int(rng.integers(1, 256)) for byte in part[:3])
        new = [piece, b"", part * 2, piece + part, flipped + part[3:], content[:first]]
        content = content[:first] + new[int(rng.integers(len(new)))] + content[end:]
    if rng.random() < 0.1:
        content = gzip.compress(content, mtime=0)
        content = (
            content[: int(rng.integers(1, len(content) + 1))] if rng.random() < 0.5 else content
        )
    return content


@pytest.mark.parametrize("num_inputs", [100, pytest.param(10_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", READERS)
def test_a_mutated_file_is_read_or_refused(name: str, num_inputs: int, tmp_path: Path) -> None:
    reader = READERS[name]
    text = reader.sound if isinstance(reader.sound, str) else json.dumps(reader.sound)
    path = tmp_path / reader.name
    path.write_text(text)
    assert reader.read(path)
    rng = np.random.default_rng([num_inputs, *name.encode()])
    num_refused = 0
    for number in range(num_inputs):
        content = mutated(text.encode(), rng)
        path.write_bytes(content)
        try:
            reader.read(path)
        except RaybioError as error:
            num_refused += 1
            assert len(str(error)) < 1000, (number, str(error)[:300])
        except Exception as error:
            raise AssertionError(f"input {number}: {content[:500]!r}") from error
    assert num_refused > 0
