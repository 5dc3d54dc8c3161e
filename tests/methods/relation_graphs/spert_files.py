"""Small files in SpERT's layout."""

import gzip
import json
from pathlib import Path
from typing import Any

ADVERSE_EFFECT = "Adverse-Effect"


def sentence(text: str, entities: str = "", relations: str = "", **more: Any) -> dict[str, Any]:
    """A sentence; entities as "Drug:0:1 Adverse-Effect:3:5", relations as "1:0" (head:tail)."""
    spans = [one.split(":") for one in entities.split()]
    pairs = [one.split(":") for one in relations.split()]
    return {
        "tokens": text.split(),
        "entities": [
            {"type": kind, "start": int(start), "end": int(end)} for kind, start, end in spans
        ],
        "relations": [
            {"type": ADVERSE_EFFECT, "head": int(head), "tail": int(tail)} for head, tail in pairs
        ],
        **more,
    }


def write(path: Path, value: Any) -> Path:
    """JSON, gzipped where the name says so."""
    content = json.dumps(value).encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def folds(*sides: tuple[str, str]) -> dict[str, Any]:
    """Folds of (training ids, test ids), each divided by blanks."""
    return {
        f"split_{number}": {"train set": train.split(), "test set": test.split()}
        for number, (train, test) in enumerate(sides, start=1)
    }
