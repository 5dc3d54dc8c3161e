"""The README.md of an exported encoder."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml


def model_card(
    card: Mapping[str, Any], *, default_name: str, tags: Sequence[str], facts: str, usage: str
) -> str:
    """Return a model card for the hub: a YAML header, facts, usage and the sections.

    Args:
        card: sections by title, as values that YAML can hold; "name" is the heading.
        default_name: the heading where ``card`` has none.
        tags: for the header.
        facts: a description of the encoder in a few sentences.
        usage: code that runs in the folder.

    Raises:
        yaml.representer.RepresenterError: if a section holds anything but plain data.
    """
    sections = [f"# {card.get('name', default_name)}", facts, usage]
    sections += [
        f"## {title}\n\n{_show(content)}" for title, content in card.items() if title != "name"
    ]
    header = yaml.safe_dump(
        {"library_name": "transformers", "pipeline_tag": "feature-extraction", "tags": list(tags)}
    )
    return f"---\n{header}---\n\n" + "\n\n".join(sections) + "\n"


def _show(content: Any) -> str:
    if isinstance(content, str):
        return content
    return f"```yaml\n{yaml.safe_dump(content, sort_keys=False, allow_unicode=True)}```"
