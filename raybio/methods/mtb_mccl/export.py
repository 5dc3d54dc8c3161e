"""Export a relation encoder as a folder.

The folder is an ordinary text encoder (transformer and tokenizer) plus the projection and heads
(``relation.safetensors``), settings for reading and classifying documents (``relation.json``), and
the reference set of classwise kNN (``reference_set.safetensors``).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from raybio.core.records import write_record
from raybio.encoders.export import export_text_encoder
from raybio.encoders.export_files import export_folder
from raybio.encoders.model_card import predict_usage
from raybio.methods.mtb_mccl.encoder import PARTS, RelationEncoder

SETTINGS = "relation.json"

REFERENCE_SET = "reference_set.safetensors"


_PAIR_NOTE = (
    "This model was trained to embed pairs of entities in documents, not texts: the code above "
    f"returns the embedding of the plain transformer. {PARTS} holds the projection that maps "
    f"states and attention to pairs; {SETTINGS} states how documents are read. raybio continues "
    "from this folder: `raybio train relation_finetune --init .`."
)

_REFERENCE_NOTE = f"{REFERENCE_SET} holds the labeled pairs that new pairs are compared with."

_BIOC_EXAMPLES = [
    {
        "id": "1",
        "passages": [
            {
                "offset": 0,
                "text": "Aspirin causes asthma.",
                "annotations": [
                    {
                        "text": "Aspirin",
                        "infons": {"type": "Chemical", "identifier": "D001241"},
                        "locations": [{"offset": 0, "length": 7}],
                    },
                    {
                        "text": "asthma",
                        "infons": {"type": "Disease", "identifier": "D001249"},
                        "locations": [{"offset": 15, "length": 6}],
                    },
                ],
            }
        ],
    }
]
"""A document of BioC JSON, for models whose relations have no direction."""

_DOCRED_EXAMPLES = [
    {
        "title": "1",
        "sents": [["Aspirin", "causes", "asthma", "."]],
        "vertexSet": [
            [{"name": "Aspirin", "sent_id": 0, "pos": [0, 1], "type": "Chemical"}],
            [{"name": "asthma", "sent_id": 0, "pos": [2, 3], "type": "Disease"}],
        ],
    }
]
"""A document of DocRED's JSON, for models whose relations run from head to tail."""


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
        settings: settings for reading documents and classifying pairs, as plain JSON.
        reference: labeled pairs that new pairs are compared with, if any.

    Returns:
        ``directory``.
    """
    notes = [_PAIR_NOTE]
    if reference is not None:
        notes.append(_REFERENCE_NOTE)
    card = {**card, "Pairs of entities": " ".join(notes)}
    if settings.get("knn_settings") is not None:
        names = ", ".join(settings["relations"][1:])
        ordered = "from head to tail" if settings["is_directed"] else "without a direction"
        facts = (
            f"Relations of entities in documents, {ordered}: {names}. Documents are read up to "
            f"{settings['max_document_tokens']:,} tokens."
        )
        examples = _DOCRED_EXAMPLES if settings["is_directed"] else _BIOC_EXAMPLES
        card = {"Predict": f"{facts}\n\n{predict_usage(examples)}", **card}
    weights = {
        name: weight
        for name, weight in encoder.state_dict().items()
        if not name.startswith("text.")
    }
    with export_folder(Path(directory)) as folder:
        export_text_encoder(encoder.text, folder, card=card)
        _save(weights, folder / PARTS)
        write_record(folder / SETTINGS, "export settings", settings)
        if reference is not None:
            _save(reference, folder / REFERENCE_SET)
    return Path(directory)


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
