"""The README.md of an exported encoder."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from raybio.core.errors import ConfigError
from raybio.encoders.sources import fetch_file

CARD = "README.md"

TAG = "raybio"
"""The tag that all cards of raybio have."""

LICENSE_KEYS = ("license", "license_name", "license_link")


class Card(NamedTuple):
    """A model card.

    Attributes:
        metadata: the YAML header.
        body: the Markdown below it.
    """

    metadata: dict[str, Any]
    body: str

    @classmethod
    def parse(cls, text: str) -> "Card":
        """Read a card; one without a header has no metadata.

        Raises:
            ConfigError: if the header is no YAML mapping.
        """
        lines = text.split("\n")
        if lines[0].strip() != "---" or "---" not in lines[1:]:
            return cls({}, text)
        end = lines.index("---", 1)
        try:
            metadata = yaml.safe_load("\n".join(lines[1:end])) or {}
        # Dates that do not exist are a ValueError.
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ConfigError(f"its header is not valid YAML ({error})") from None
        if not isinstance(metadata, dict):
            raise ConfigError(f"its header is a {type(metadata).__name__}, want a mapping")
        return cls(metadata, "\n".join(lines[end + 1 :]).lstrip("\n"))

    def __str__(self) -> str:
        """Return the text of the file."""
        header = yaml.safe_dump(self.metadata, sort_keys=False, allow_unicode=True)
        return f"---\n{header}---\n\n{self.body}"


def model_card(
    card: Mapping[str, Any], *, default_name: str, tags: Sequence[str], facts: str, usage: str
) -> str:
    """Return a model card for the hub: a YAML header, facts, usage and the sections.

    Args:
        card: sections by title, as values that YAML can hold; "name" is the heading, "metadata"
            more keys of the header.
        default_name: the heading where ``card`` has none.
        tags: for the header.
        facts: a description of the encoder in a few sentences.
        usage: code that runs in the folder.

    Raises:
        yaml.representer.RepresenterError: if a section holds anything but plain data.
    """
    sections = [f"# {card.get('name', default_name)}", facts, usage]
    sections += [
        f"## {title}\n\n{_show(content)}"
        for title, content in card.items()
        if title not in ("name", "metadata")
    ]
    metadata = {
        "library_name": "transformers",
        "pipeline_tag": "feature-extraction",
        "tags": list(tags),
    }
    metadata |= card.get("metadata", {})
    return str(Card(metadata, "\n\n".join(sections) + "\n"))


def predict_usage(examples: Sequence[Any]) -> str:
    """Return code that predicts for some inputs with the model of its folder."""
    return (
        "```python\nimport raybio\n\n"
        'model = raybio.load(".")  # the path of this folder\n'
        f"inputs = {json.dumps([*examples])}\n"
        "predictions = model.predict(inputs)\n"
        "for item, prediction in zip(inputs, predictions):\n"
        "    print(item, prediction)\n```\n\n"
        "Whole files: `raybio predict . --input FILE --out predictions.tsv`."
    )


def license_sentence(metadata: Mapping[str, Any]) -> str:
    """Return the sentence of a card about its license, by the header."""
    stated = [str(metadata[key]) for key in LICENSE_KEYS if key in metadata]
    if stated:
        return f"License: {', '.join(stated)}."
    return (
        "No license is stated. Whoever publishes the model chooses one: `raybio push MODEL REPO "
        "--license ID`."
    )


def inherited_metadata(source: str, revision: str, *, is_on_hub: bool) -> dict[str, Any]:
    """Return the metadata that a trained model's card inherits from its base model's card.

    These are the license, if the base model's card states one, and the id of the base model on the
    hub. For a folder, the id is known if raybio exported it and its own base model is on the hub.

    Args:
        source: folder or hub id of the base model.
        revision: of a hub id.
        is_on_hub: whether ``source`` is a hub id.
    """
    try:
        path = fetch_file(source, CARD, revision)
        theirs = {} if path is None else Card.parse(path.read_text(encoding="utf-8")).metadata
    except (ConfigError, OSError, UnicodeDecodeError):
        # A base model without a readable card states no license. This must not stop a training.
        theirs = {}
    metadata = {key: theirs[key] for key in LICENSE_KEYS if isinstance(theirs.get(key), str)}
    if is_on_hub:
        metadata["base_model"] = source
    elif TAG in (theirs.get("tags") or ()) and isinstance(theirs.get("base_model"), str):
        metadata["base_model"] = theirs["base_model"]
    if "base_model" in metadata:
        metadata["base_model_relation"] = "finetune"
    return metadata


def _show(content: Any) -> str:
    if isinstance(content, str):
        return content
    return f"```yaml\n{yaml.safe_dump(content, sort_keys=False, allow_unicode=True)}```"
