"""Configuration: frozen pydantic models that refuse unknown keys and suggest the right one."""

import contextlib
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from raybio.core.digest import json_digest
from raybio.core.errors import ConfigError
from raybio.core.fields import explain, fields, is_section, setting_hint
from raybio.core.plain_yaml import parse_yaml, read_mapping


class BaseConfig(BaseModel):
    """Base class of all configuration: immutable, complete, and strict about names and types."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _bool_is_not_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[str(info.field_name)].annotation
        types_ = typing.get_args(annotation) or (annotation,)
        if isinstance(value, bool) and bool not in types_ and (int in types_ or float in types_):
            return str(value)  # refused like any other text that is no number
        return value

    @classmethod
    def from_mapping(cls, mapping: dict[str, Any]) -> Self:
        """Validate a nested mapping.

        Raises:
            ConfigError: for an unknown field, a field that is given under two names, a wrong type
                or a value out of range, with its path.
        """
        mapping = present_names(cls, mapping)
        try:
            return cls.model_validate(mapping)
        except ValidationError as error:
            raise ConfigError(explain(cls, mapping, error)) from None

    def to_mapping(self) -> dict[str, Any]:
        """Return the configuration as plain nested dicts that JSON and YAML can hold."""
        return self.model_dump(mode="json")


C = TypeVar("C", bound=BaseConfig)


REPLACES = "replaces"
"""Key in a field's ``json_schema_extra`` that names another setting of its section. If only the
field is given, the other setting gets the default of its class (null, 0)."""

FORMERLY = "formerly"
"""Key in a field's ``json_schema_extra``: the former names of a setting or a section within its
section, the oldest first. They are read as the present name."""

FIRST_DEFAULT = "first_default"
"""Key in a field's ``json_schema_extra``: the default that the setting had at first, if it has
another one now. Names of runs depend on what differs from it, so that a run with the former default
is found by giving the setting."""


def load(model: type[C], path: str | Path, base: C | None = None) -> C:
    """Read a YAML file over ``base`` (default: the model's own defaults).

    Raises:
        ConfigError: if the file is missing, is not a YAML mapping, or does not fit the model.
    """
    try:
        return merge(model, read_mapping(path), base)
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None


def merge(model: type[C], settings: dict[str, Any], base: C | None = None) -> C:
    """Return nested settings over ``base`` (default: the model's own defaults).

    Raises:
        ConfigError: if they do not fit the model.
    """
    defaults = {} if base is None else base.to_mapping()
    return model.from_mapping(_merge(defaults, present_names(model, settings), model))


def value_at(config: BaseConfig, path: str) -> Any:
    """Return the value of the setting at a dotted ``path``, which must exist, as plain data."""
    node: Any = config.to_mapping()
    for name in path.split("."):
        node = node[name]
    return node


def override(config: C, path: str, value: Any) -> C:
    """Return ``config`` with the field at dotted ``path`` set; see ``override_all``."""
    return override_all(config, {path: value})


def override_all(config: C, value_by_path: Mapping[str, Any]) -> C:
    """Return ``config`` with several fields set at once, for values that are only valid together.

    A string value is read as YAML, as it comes from ``--set``: ``"0.1"`` is a number, ``"[1, 2]"``
    a list.

    Raises:
        ConfigError: if a path does not exist (naming the nearest one), a setting is given under two
            names or a value does not fit.
    """
    known = [field.path for field in fields(type(config))]
    settings: dict[str, Any] = {}
    for path, value in present_paths(type(config), value_by_path).items():
        if path not in known:
            raise ConfigError(f"{path!r} is not a setting.{setting_hint(path, known)}")
        *parents, leaf = path.split(".")
        section = settings
        for parent in parents:
            section = section.setdefault(parent, {})
        section[leaf] = _read_yaml(path, value) if isinstance(value, str) else value
    return merge(type(config), settings, config)


def present_names(model: Any, settings: Any, prefix: str = "") -> Any:
    """Return nested settings with the present names of all settings.

    Args:
        model: class of the settings.
        settings: plain data; anything but a mapping is returned as it is.
        prefix: path of the section that ``settings`` is, with a dot at its end.

    Raises:
        ConfigError: if a setting is given under two names.
    """
    if not (is_section(model) and isinstance(settings, dict)):
        return settings
    renamed = {}
    for given, value in settings.items():
        name = _present_name(model, given)
        if name in renamed:
            raise _given_twice(prefix + name)
        info = model.model_fields.get(name)
        inner = None if info is None else info.annotation
        renamed[name] = present_names(inner, value, f"{prefix}{name}.")
    return renamed


def present_paths(model: type[BaseConfig], value_by_path: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same values by the present paths of their settings.

    Raises:
        ConfigError: if a setting is given under two names.
    """
    renamed: dict[str, Any] = {}
    for given, value in value_by_path.items():
        path = present_path(model, given)
        if path in renamed:
            raise _given_twice(path)
        renamed[path] = value
    return renamed


def present_path(model: type[BaseConfig], path: str) -> str:
    """Return the present path of a setting; an unknown one as it is."""
    return ".".join(name for name, _ in _along(model, path))


def first_path(model: type[BaseConfig], path: str) -> str:
    """Return the oldest path of a setting, for names that a new path must not change.

    Args:
        model: class of the settings.
        path: the present path; an unknown one is returned as it is.
    """
    names = []
    for name, info in _along(model, path):
        former = () if info is None else _extra(info).get(FORMERLY, ())
        names.append(former[0] if former else name)
    return ".".join(names)


def _along(model: Any, path: str) -> Iterator[tuple[str, FieldInfo | None]]:
    """Yield the present name and the field of each part of a path; None for unknown ones."""
    for given in path.split("."):
        if not is_section(model):
            yield given, None
            continue
        name = _present_name(model, given)
        info = model.model_fields.get(name)
        yield name, info
        model = None if info is None else info.annotation


def _present_name(section: type[BaseConfig], given: Any) -> Any:
    """Return the present name of a setting of a section; an unknown one as it is."""
    if given in section.model_fields:
        return given
    for name, info in section.model_fields.items():
        if given in _extra(info).get(FORMERLY, ()):
            return name
    return given


def _extra(info: FieldInfo) -> dict[str, Any]:
    extra = info.json_schema_extra
    return extra if isinstance(extra, dict) else {}


def _given_twice(path: str) -> ConfigError:
    return ConfigError(f"{path}: is given twice, once under a former name; keep one")


def _read_yaml(path: str, text: str) -> Any:
    try:
        return parse_yaml(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {text!r} is not a YAML value ({error})") from None


def fingerprint(config: BaseConfig) -> str:
    """Return 16 hex digits that change with any setting."""
    return json_digest(config.to_mapping())[:16]


def name_digits(config: BaseConfig) -> str:
    """Return 16 hex digits for a run's name, a hash of all settings that differ from the defaults.

    A setting that is added or renamed in a later version, or that gets another default, does not
    change them. Use ``fingerprint`` as the key of a cache: these digits do not depend on the
    defaults.
    """
    defaults = flatten(type(config).model_construct().to_mapping()) | _first_defaults(type(config))
    changed = {
        first_path(type(config), path): value
        for path, value in flatten(config.to_mapping()).items()
        if path not in defaults or value != defaults[path]
    }
    return json_digest(changed)[:16]


def _first_defaults(model: type[BaseConfig], prefix: str = "") -> dict[str, Any]:
    """Return path -> first default of the settings that have another one now."""
    found: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        inner: Any = info.annotation
        if is_section(inner):
            found |= _first_defaults(inner, f"{prefix}{name}.")
        elif FIRST_DEFAULT in _extra(info):
            found[prefix + name] = _extra(info)[FIRST_DEFAULT]
    return found


def flatten(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def recorded_config(model: type[C], config: dict[str, Any], source: Path) -> C:
    """Return the configuration in the record of a run.

    Args:
        model: class of the configuration.
        config: its settings in the record.
        source: the file of the record.

    Raises:
        ConfigError: naming the file, if this version of raybio has other settings.
    """
    try:
        return model.from_mapping(config)
    except ConfigError as error:
        raise ConfigError(
            f"{source}: was written by another version of raybio, which had other settings: {error}"
        ) from None


def changed_settings(old: dict[str, Any], new: BaseConfig, ignore: Iterable[str] = ()) -> list[str]:
    """Return a line ``path: old -> new`` for each setting that differs, except those in ``ignore``.

    A setting that did not exist when ``old`` was saved counts as its default.
    """
    # If a setting was removed or takes other values now, the saved mapping is shown as it is.
    with contextlib.suppress(ConfigError):
        old = present_names(type(new), old)
        old = type(new).from_mapping(old).to_mapping()
    ignored = tuple(f"{path}: " for path in ignore)
    lines = difference(old, new.to_mapping())
    return [line for line in lines if not line.startswith(ignored)]


def difference(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Return a line ``path: old -> new`` for each setting that differs between two mappings."""
    lines = []
    for key in sorted(old.keys() | new.keys()):
        path = prefix + key
        before = old.get(key, "(absent)")
        after = new.get(key, "(absent)")
        if isinstance(before, dict) and isinstance(after, dict):
            lines += difference(before, after, path + ".")
        elif before != after:
            lines.append(f"{path}: {before!r} -> {after!r}")
    return lines


def _merge(base: dict[str, Any], over: dict[str, Any], model: Any) -> dict[str, Any]:
    """Return ``base`` updated with the values of ``over``; both are mappings of ``model``."""
    merged = dict(base)
    info_by_name = model.model_fields if is_section(model) else {}
    for name, value in over.items():
        info = info_by_name.get(name)
        inner = merged.get(name)
        if isinstance(inner, dict) and isinstance(value, dict):
            value = _merge(inner, value, None if info is None else info.annotation)
        merged[name] = value
        replaced = None if info is None else _extra(info).get(REPLACES)
        if replaced is not None and replaced not in over:
            merged[replaced] = info_by_name[replaced].default
    return merged
