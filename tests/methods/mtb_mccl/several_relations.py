"""Small DocRED documents whose wording states no, one or two relations of two entities."""

import json
from pathlib import Path

import numpy as np

from raybio.methods.mtb_mccl.documents.prepare import prepare_documents
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.store.store import SPLITS

WORDINGS = {"founded": ("P1",), "leads": ("P2",), "created": ("P1", "P2"), "saw": ()}
"""What stands between two entities -> the relations of the first to the second."""

NAMES = ["Anna", "Bela", "Cora", "Dana", "Emil", "Finn"]


def labeled_documents(num: int, seed: int) -> list[dict]:
    """Documents with three entities and two statements, and a short name of the first entity."""
    rng = np.random.default_rng(seed)
    documents = []
    for number in range(num):
        names = [str(name) for name in rng.permutation(NAMES)[:3]]
        sentences, labels = [], []
        vertices: list[list[dict]] = [[], [], []]
        for head, tail in ((0, 1), (2, 0)):
            word = str(rng.permutation([*WORDINGS])[0])
            for place, entity in ((0, head), (2, tail)):
                mention = {
                    "name": names[entity],
                    "sent_id": len(sentences),
                    "pos": [place, place + 1],
                }
                vertices[entity].append(mention | {"type": "PER"})
            sentences.append([names[head], word, names[tail], "."])
            labels += [
                {"h": head, "t": tail, "r": relation, "evidence": []} for relation in WORDINGS[word]
            ]
        short = {"name": names[0][:2], "sent_id": len(sentences), "pos": [0, 1], "type": "PER"}
        vertices[0].append(short)
        sentences.append([names[0][:2], "."])
        documents.append(
            {
                "title": f"{seed}-{number}",
                "sents": sentences,
                "vertexSet": vertices,
                "labels": labels,
            }
        )
    return documents


def labeled_store(
    folder: Path, nums: tuple[int, int, int] = (48, 12, 16)
) -> tuple[DocumentStore, dict[str, list[dict]]]:
    """A store of such documents, and what its files hold by split."""
    files, raw = [], {}
    for seed, (split, num) in enumerate(zip(SPLITS, nums, strict=True)):
        raw[split] = labeled_documents(num, seed)
        files.append(folder / f"{split}.json")
        files[-1].write_text(json.dumps(raw[split]))
    return prepare_documents(folder / "store", *([file] for file in files)), raw
