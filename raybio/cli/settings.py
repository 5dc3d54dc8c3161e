"""Command options generated from the settings of a model, where each is declared once."""

import functools
import re
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_origin

import typer
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from raybio.core.config import BaseConfig, C
from raybio.core.errors import ConfigError
from raybio.core.fields import Field, fields

OTHER_NAMES = {"strip_prefixes": "--strip-prefix", "taxids": "--taxid"}
"""Settings whose option has another name (singular, since it can be repeated)."""

_PROBLEM = re.compile(r"(?:^|(?<=; ))\w+(?=: )")
"""Matches the name of the setting at the beginning of each problem."""


def meanings(model: type[BaseConfig]) -> dict[str, str]:
    """Return meaning and range of each setting, as the help of an option of that name."""
    return {field.path: _help(field) for field in fields(model)}


def with_settings(model: type[BaseConfig]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command an option for each setting of a model.

    They replace the parameter ``config``, which the command receives. Name, type, default, range
    and help come from the setting. A bool becomes a flag, and the option of a list is repeatable.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        """Return the command with the options in its signature, which typer reads."""

        @functools.wraps(command)
        def with_options(**arguments: Any) -> None:
            given = {name: arguments.pop(name) for name in model.model_fields}
            command(**arguments, config=settings_of(model, given))

        options = [_option(field, model.model_fields[field.path]) for field in fields(model)]
        parameters: list[Parameter] = []
        for parameter in signature(command, eval_str=True).parameters.values():
            if parameter.name == "config":
                parameters += options
            else:
                parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
        # Typer reads both attributes.
        with_options.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_options

    return decorate


def settings_of(model: type[C], given: Mapping[str, Any]) -> C:
    """Build the settings from option values.

    Raises:
        ConfigError: for a value out of range, naming the option.
    """
    try:
        return model.from_mapping(dict(given))
    except ConfigError as error:
        names = {name: _option_name(name) for name in given}
        text = _PROBLEM.sub(lambda found: names.get(found[0], found[0]), str(error))
        raise ConfigError(text) from None


def _option(field: Field, info: FieldInfo) -> Parameter:
    """Return the parameter that declares the option of a setting."""
    kind: Any = info.annotation
    default = info.get_default(call_default_factory=True)
    help_ = _help(field)
    parser = None
    if get_origin(kind) is tuple:
        kind = list[str]
        default = list(default)
        help_ += "; repeatable"
    elif kind is bool:
        assert not default, f"{field.path}: a flag cannot turn it off"
    elif kind is float:
        parser = _number_parser(field, info)
    option = typer.Option(
        _option_name(field.path), help=help_, parser=parser, metavar="FLOAT" if parser else None
    )
    annotation = Annotated[kind, option]
    return Parameter(field.path, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _number_parser(field: Field, info: FieldInfo) -> Callable[[str], float]:
    """Return a typer ``parser`` of numbers in a setting's range; typer's own ranges accept NaN."""
    number_type: Any = Annotated[float, *info.metadata]
    adapter = TypeAdapter(number_type, config=ConfigDict(allow_inf_nan=False))

    def number(text: str) -> float:
        try:
            return float(adapter.validate_python(text))
        except ValidationError:
            raise typer.BadParameter(f"got {text}, want a number {field.range}") from None

    return number


def _option_name(setting: str) -> str:
    return OTHER_NAMES.get(setting, f"--{setting.replace('_', '-')}")


def _help(field: Field) -> str:
    return f"{field.meaning} {field.range}".strip()
