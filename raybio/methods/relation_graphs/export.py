"""Export a word encoder: a transformer that others can load, and its heads and settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from raybio.core.records import write_record
from raybio.encoders.export import export_text_encoder
from raybio.encoders.export_files import export_folder
from raybio.encoders.model_card import model_card, predict_usage
from raybio.encoders.text import TextEncoder
from raybio.methods.relation_graphs.classifiers.reference_words import ReferenceWords
from raybio.methods.relation_graphs.encoder import HEADS, WordEncoder
from raybio.methods.relation_graphs.encoders.character_bert.model import (
    save_character_bert,
)

SETTINGS = "words.json"

_EXAMPLES = [
    "Severe asthma was induced by aspirin.",
    "Two children had a rash after penicillin.",
]


_USAGE = (
    "`raybio train relation_graphs --init .`, or "
    '`raybio.methods.relation_graphs.encoders.character_bert.model.build_character_bert(".")`.'
)


def export_word_encoder(
    encoder: WordEncoder,
    directory: str | Path,
    *,
    card: Mapping[str, Any],
    settings: Mapping[str, Any],
    reference: ReferenceWords | None = None,
) -> Path:
    """Write transformer, tokenizer if it has one, heads and settings; an older export is replaced.

    Args:
        encoder: what to export; not changed.
        directory: the folder to write.
        card: see ``export_text_encoder``.
        settings: settings for using the encoder, as plain JSON.
        reference: words that vote on new words; None: the export predicts nothing.

    Returns:
        ``directory``.
    """
    if reference is not None:
        card = {"Predict": f"{reference.description}\n\n{predict_usage(_EXAMPLES)}", **card}
    with export_folder(Path(directory)) as folder:
        if isinstance(encoder.body, TextEncoder):
            export_text_encoder(encoder.body, folder, card=card)
        else:
            save_character_bert(encoder.body, folder)
            num_layers = encoder.model_config.num_hidden_layers
            facts = f"A CharacterBERT of {num_layers} layers, width {encoder.width}."
            text = model_card(
                card, default_name="CharacterBERT", tags=["raybio"], facts=facts, usage=_USAGE
            )
            (folder / "README.md").write_text(text, encoding="utf-8")
        heads = {
            name: weight
            for name, weight in encoder.state_dict().items()
            if name.startswith("head.")
        }
        save_file(
            {name: weight.detach().cpu().contiguous() for name, weight in heads.items()},
            folder / HEADS,
        )
        write_record(folder / SETTINGS, "export settings", settings)
        if reference is not None:
            reference.write(folder)
    return Path(directory)
