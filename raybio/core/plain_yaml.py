"""Plain YAML: without tags that build objects, repeated keys and aliases."""

import re
from pathlib import Path
from typing import Any

import yaml

from raybio.core.errors import ConfigError

_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
"""Tags of numbers in YAML."""

_OLD_NUMBER = re.compile(r":|^[-+]?0[\d_]+$")
"""Matches numbers that YAML 1.2 has dropped: base 60 (``1:30``), and octal with a leading zero."""


def read_mapping(path: str | Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping; an empty file is an empty mapping.

    Raises:
        ConfigError: if it cannot be read, is not plain YAML (see ``parse_yaml``) or is no mapping.
    """
    try:
        mapping = parse_yaml(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the file ({error.strerror})") from None
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if mapping is None:
        return {}
    if not isinstance(mapping, dict):
        raise ConfigError(
            f"{path}: holds {type(mapping).__name__}, want a mapping of field names to values"
        )
    return mapping


def parse_yaml(text: str) -> Any:
    """Parse plain YAML: no tags that build objects, no repeated keys, no aliases.

    Numbers with leading zeros (decimal in YAML 1.2, octal in 1.1) and of base 60 stay text.

    Raises:
        ConfigError: with the line, the column and the reason, in one line.
    """
    try:
        return yaml.load(text, Loader=_PlainLoader)
    except yaml.MarkedYAMLError as error:
        # PyYAML's own message takes five lines and calls the text "<unicode string>".
        mark = error.problem_mark or error.context_mark
        position = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        reason = " ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"not valid YAML: {position}{reason}. Correct it there") from None
    except RecursionError:
        reason = "nested too deeply; settings are a few levels deep"
        raise ConfigError(f"not valid YAML: {reason}") from None
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: dates that do not exist, integers of thousands of digits
        raise ConfigError(f"not valid YAML: {error}") from None


class _PlainLoader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node; refuse aliases, since a few of them can expand without bound."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem=f"found the alias *{event.anchor}; write the value out",
                problem_mark=event.start_mark,
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping; a repeated key is refused, where PyYAML would take its last value."""
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue
            if key_node.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key_node.value!r} is repeated; keep one",
                    problem_mark=key_node.start_mark,
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def _number(loader: _PlainLoader, node: yaml.ScalarNode) -> Any:
    """Return a number; leave the octal and base-60 numbers of YAML 1.1 as text.

    The setting then reads ``010`` as ten and refuses ``1:30``.
    """
    if _OLD_NUMBER.search(node.value):
        return node.value
    construct = loader.construct_yaml_int if node.tag == _INT else loader.construct_yaml_float
    return construct(node)


_PlainLoader.add_constructor(_INT, _number)
_PlainLoader.add_constructor(_FLOAT, _number)
