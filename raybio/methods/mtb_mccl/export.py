"""Export a relation encoder as a folder.

The folder is an ordinary text encoder (transformer and tokenizer) plus the projection and heads
(``relation.safetensors``), how documents are read and classified (``relation.json``), and the
reference set of classwise kNN (``reference_set.safetensors``).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from raybio.core.files import atomic_folder
from raybio.core.records import write_record
from raybio.encoders.export import export_text_encoder
from raybio.methods.mtb_mccl.encoder import PARTS, RelationEncoder

SETTINGS = "relation.json"

REFERENCE_SET = "reference_set.safetensors"


_PAIR_NOTE = (
    "This model was trained to embed pairs of entities in documents, not texts: the code above "
    f"returns the embedding of the plain transformer. {PARTS} holds the projection that maps "
    f"states and attention to pairs; {SETTINGS} states how documents are read. raybio continues "
    "from this folder: `jobs/relation_finetune.py --init .`."
)

_REFERENCE_NOTE = f"{REFERENCE_SET} holds the labeled pairs that new pairs are compared with."

_RELATION_NOTE = (
    "Find relations: `jobs/extract_relations.py --model . --input DOCUMENTS --out relations.tsv`."
)


def export_relation_encoder(
    encoder: RelationEncoder,
    directory: str | Path,
    *,
    card: Mapping[str, Any],
    settings: Mapping[str, Any],
    reference: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write transformer, tokenizer with the markers, projection, heads and settings.

    An older export in ``directory`` is replaced.

    Args:
        encoder: what to export; not changed.
        directory: the folder to write.
        card: see ``export_text_encoder``.
        settings: how the encoder reads documents and classifies pairs, as plain JSON.
        reference: labeled pairs that new pairs are compared with, if any.

    Returns:
        ``directory``.
    """
    notes = [_PAIR_NOTE]
    if reference is not None:
        notes.append(_REFERENCE_NOTE)
    if "relations" in settings:
        notes.append(_RELATION_NOTE)
    weights = {
        name: weight
        for name, weight in encoder.state_dict().items()
        if not name.startswith("text.")
    }
    with atomic_folder(Path(directory)) as folder:
        export_text_encoder(
            encoder.text, folder, card={**card, "Pairs of entities": " ".join(notes)}
        )
        _save(weights, folder / PARTS)
        write_record(folder / SETTINGS, "export settings", settings)
        if reference is not None:
            _save(reference, folder / REFERENCE_SET)
    return Path(directory)


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
