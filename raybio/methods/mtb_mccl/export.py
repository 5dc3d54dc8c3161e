"""Export."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from raybio.core.files import atomic_folder
from raybio.encoders.export import export_text_encoder
from raybio.methods.mtb_mccl.encoder import PARTS, RelationEncoder

SETTINGS, REFERENCE_SET = "relation.json", "reference_set.safetensors"


_PAIRS = f"""Trained were embeddings of pairs of entities in documents, and not of texts: the code above gives the plain
transformer's. {PARTS} holds the projection that makes pairs of its states and attention, {SETTINGS} how documents are
read. raybio goes on with this folder (`jobs/relation_finetune.py --init .`)"""


_REFERENCE_SET = f"""; {REFERENCE_SET} holds the labelled pairs that others are compared with"""


_RELATIONS = """. `jobs/extract_relations.py --model . --input DOCUMENTS --out relations.tsv` finds relations"""


def export_relation_encoder(
    encoder: RelationEncoder,
    directory: str | Path,
    *,
    card: Mapping[str, Any],
    settings: Mapping[str, Any],
    reference: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write transformer, tokenizer with the markers, projection, heads and settings; an older export is replaced.

    Args:
        encoder: what to export; not changed.
        directory: the folder to write.
        card: see ``export_text_encoder``.
        settings: what whoever classifies with it has to know, as plain JSON.
        reference: the labelled pairs that new ones are compared with, if there are any.

    Returns:
        ``directory``.
    """
    told = (
        _PAIRS
        + (_REFERENCE_SET if reference is not None else "")
        + (_RELATIONS if "relations" in settings else "")
        + "."
    )
    with atomic_folder(Path(directory)) as folder:
        export_text_encoder(encoder.text, folder, card={**card, "Pairs of entities": told})
        own = {
            name: weight
            for name, weight in encoder.state_dict().items()
            if not name.startswith("text.")
        }
        save_file(
            {name: weight.detach().cpu().contiguous() for name, weight in own.items()},
            folder / PARTS,
        )
        (folder / SETTINGS).write_text(
            json.dumps(dict(settings), indent=2) + "\n", encoding="utf-8"
        )
        if reference is not None:
            save_file(
                {name: part.detach().cpu().contiguous() for name, part in reference.items()},
                folder / REFERENCE_SET,
            )
    return Path(directory)
