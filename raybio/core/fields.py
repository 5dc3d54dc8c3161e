"""Settings in words: their description by ``--help``, and what is wrong with given ones."""

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from raybio.core.text import did_you_mean, near_names, suggestion

SEE_ALL = " raybio train METHOD --help-all lists all settings."
"""Hint of an unknown setting that resembles no other."""

MAX_SHOWN = 200
"""Maximum number of characters of a wrong value or name in an error message."""

_SYMBOLS = {
    "ge": ">=",
    "gt": ">",
    "le": "<=",
    "lt": "<",
    "min_length": "of length >=",
    "multiple_of": "a multiple of",
}
"""Constraint of a pydantic field -> how ranges are shown."""


class Field(NamedTuple):
    """One configuration field, as ``--help`` shows it."""

    path: str
    type: str
    default: str
    range: str
    meaning: str


def fields(
    model: type[BaseModel], prefix: str = "", defaults: BaseModel | None = None
) -> Iterator[Field]:
    """Yield every leaf field of ``model``, in order of declaration, with its dotted path.

    Defaults are those of ``model``, which may differ from the defaults of a section's own class.
    """
    for name, info in model.model_fields.items():
        inner: Any = info.annotation
        if defaults is None:
            default = info.get_default(call_default_factory=True)
        else:
            default = getattr(defaults, name)
        if is_section(inner):
            section = default if isinstance(default, BaseModel) else None
            yield from fields(inner, f"{prefix}{name}.", section)
        else:
            yield Field(
                prefix + name,
                _type_name(inner),
                _show(default),
                _range(info.metadata),
                info.description or "",
            )


def is_section(annotation: Any) -> bool:
    """Return whether a field of this type holds settings of its own."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def explain(model: type[BaseModel], mapping: Mapping[str, Any], error: ValidationError) -> str:
    """Return what is wrong with ``mapping``, the values that were given for ``model``."""
    known = [field.path for field in fields(model)]
    lines = []
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            lines.append(f"{path[:MAX_SHOWN]!r} is not a setting.{setting_hint(path, known)}")
        elif problem["type"] == "value_error":  # the validators of the models raise these
            message = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{path}: {message}" if path else message)
        else:
            is_infinite = problem["type"] == "finite_number"
            lines.append(_misfit(model, mapping, problem["loc"], is_infinite=is_infinite))
    # Each member of a union reports the same problem, so repetitions are dropped.
    return "; ".join(dict.fromkeys(lines))


def setting_hint(path: str, known: list[str]) -> str:
    """Return a sentence that suggests the settings nearest to a misspelt ``path``."""
    if path in known:  # a flat key "a.b:" in YAML
        return f" Write it nested: '{path.replace('.', ': {')}: ...{'}' * path.count('.')}'."
    near = near_names(path, known)
    if not near:
        leaf = path.rsplit(".", 1)[-1]
        path_by_leaf = {candidate.rsplit(".", 1)[-1]: candidate for candidate in known}
        near = [path_by_leaf[name] for name in near_names(leaf, list(path_by_leaf))]
    return suggestion(near) or SEE_ALL


def _misfit(
    model: type[BaseModel], mapping: Any, location: Iterable[int | str], *, is_infinite: bool
) -> str:
    """Describe the value given for the setting that contains ``location``, and what it accepts."""
    names: list[str] = []
    annotation: Any = model
    wanted = _wanted(model, "")
    got = repr(mapping)
    for name in location:
        if not (is_section(annotation) and isinstance(mapping, Mapping)):
            break
        # Keys of a YAML mapping need not be text.
        if not isinstance(name, str) or name not in annotation.model_fields:
            break
        info = annotation.model_fields[name]
        annotation = info.annotation
        wanted = _wanted(annotation, _range(info.metadata))
        got = repr(mapping[name]) if name in mapping else "nothing"
        mapping = mapping.get(name)
        names.append(name)
    if is_infinite:
        wanted = wanted.replace("a number", "a finite number")
    if len(got) > MAX_SHOWN:
        got = f"{got[:MAX_SHOWN]}…"
    choices = typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()
    hint = ""
    if isinstance(mapping, str):
        hint = did_you_mean(mapping, [choice for choice in choices if isinstance(choice, str)])
    return f"{'.'.join(names)}: got {got}, want {wanted}{'.' * bool(hint)}{hint}"


def _wanted(annotation: Any, range_: str) -> str:
    """Describe in words what a setting of this type accepts."""
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is typing.Literal:
        return " or ".join(map(str, arguments))
    if origin is typing.Annotated:
        return _wanted(arguments[0], _range(arguments[1:]))
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_wanted(argument, range_) for argument in arguments)
    if origin is tuple:
        items = arguments[:1] if ... in arguments else arguments
        return f"a list of {', '.join(_wanted(item, '') for item in items)} {range_}".rstrip()
    if is_section(annotation):
        return "a mapping of settings"
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        type(None): "null",
    }
    plain = words.get(annotation, _type_name(annotation))
    return f"{plain} {range_}".rstrip() if annotation in (int, float, str) else plain


def _type_name(annotation: Any) -> str:
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is typing.Literal:
        return " | ".join(str(argument) for argument in arguments)
    if origin is typing.Annotated:
        return f"{_type_name(arguments[0])} {_range(arguments[1:])}".rstrip()
    if origin in (types.UnionType, typing.Union):
        return " | ".join(_type_name(argument) for argument in arguments)
    if annotation is type(None):
        return "null"
    if origin is not None:
        name = "list" if origin is tuple else origin.__name__  # YAML writes tuples as lists
        items = [_type_name(argument) for argument in arguments if argument is not ...]
        return f"{name} of {', '.join(items)}"
    return str(getattr(annotation, "__name__", annotation))


def _range(metadata: Iterable[Any]) -> str:
    """Describe the limits among the metadata of a type, which may hold validators too."""
    parts = []
    for constraint in metadata:
        if isinstance(constraint, FieldInfo):
            parts += [_range(constraint.metadata)]
        for name, symbol in _SYMBOLS.items():
            if hasattr(constraint, name):
                parts.append(f"{symbol} {getattr(constraint, name)}")
    return ", ".join(filter(None, parts))


def _show(default: Any) -> str:
    if default is None:
        return "null"
    return str(list(default) if isinstance(default, tuple) else default)
