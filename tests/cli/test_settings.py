"""Options of commands that are the settings of a model."""

from typing import Annotated, Literal

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from raybio.cli.settings import settings_of, with_settings
from raybio.core.config import BaseConfig
from raybio.core.errors import ConfigError
from raybio.methods.sppt.config import PrepareConfig


class Model(BaseConfig):
    kind: Literal["plain", "fancy"] = Field("plain", description="the kind")
    share: float = Field(0.5, ge=0, lt=1, description="a share")
    num_rows: int = Field(7, ge=1, description="rows")
    is_strict: bool = Field(False, description="refuse more")
    taxids: tuple[str, ...] = Field((), description="kept species")
    prefix: str = Field("", description="of names")


GIVEN = {
    "kind": "fancy",
    "share": 0.25,
    "num_rows": 8,
    "is_strict": True,
    "taxids": ("9606", "562"),
    "prefix": "9606.",
}
WORDS = [
    "--kind",
    "fancy",
    "--share",
    "0.25",
    "--num-rows",
    "8",
    "--is-strict",
    "--taxid",
    "9606",
    "--taxid",
    "562",
    "--prefix",
    "9606.",
]


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @with_settings(Model)
    def show(
        source: Annotated[str, typer.Argument(help="a source")],
        *,
        name: Annotated[str, typer.Option(help="a name")] = "none",
        config: Model,
        force: Annotated[bool, typer.Option("--force", help="replace")] = False,
    ) -> None:
        """Show the settings."""
        print(source, name, force, config.model_dump_json())

    return app


@pytest.mark.parametrize("number", range(len(GIVEN) + 1))
def test_the_command_gets_each_setting_that_is_given_and_the_defaults_of_the_others(
    app: typer.Typer, number: int
) -> None:
    given = dict(list(GIVEN.items())[:number])
    words = WORDS[: [0, 2, 4, 6, 7, 11, 13][number]]
    done = CliRunner().invoke(app, ["s", "--name", "n", *words, "--force"], catch_exceptions=False)
    source, name, force, settings = done.stdout.split(maxsplit=3)
    assert (source, name, force) == ("s", "n", "True")
    assert Model.model_validate_json(settings) == Model(**given)


def test_options_stand_in_place_of_the_settings_with_their_words_ranges_and_defaults(
    app: typer.Typer,
) -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    for words in (
        "<plain|fancy> the kind [default: plain]",
        "a share >= 0, < 1 [default: 0.5]",
        "rows >= 1 [default: 7]",
        "kept species; repeatable",
    ):
        assert words in " ".join(shown.replace("│", " ").split())
    names = ["--name", "--kind", "--share", "--num-rows", "--is-strict", "--taxid", "--prefix"]
    positions = [shown.index(f"{name} ") for name in [*names, "--force"]]
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("--kind", "fancier", "'fancier' is not one of 'plain', 'fancy'"),
        ("--share", "1", "got 1, want a number >= 0, < 1"),
        ("--share", "nan", "got nan, want a number >= 0, < 1"),
    ],
)
def test_a_value_that_is_none_is_refused_with_its_option(
    app: typer.Typer, option: str, value: str, wanted: str
) -> None:
    done = CliRunner().invoke(app, ["s", option, value], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert f"Invalid value for '{option}'" in done.output
    assert wanted in done.output


def test_a_whole_number_out_of_range_is_refused_with_its_option(app: typer.Typer) -> None:
    refused = CliRunner().invoke(app, ["s", "--num-rows", "0"]).exception
    assert isinstance(refused, ConfigError)
    assert str(refused) == "--num-rows: got 0, want a whole number >= 1"


def test_each_refused_setting_of_a_command_is_named_by_its_option() -> None:
    given = {"taxids": ("abc",), "seed": -1, "held_out": "x"}
    with pytest.raises(ConfigError) as refused:
        settings_of(PrepareConfig, given)
    problems = str(refused.value).split("; ")
    assert [problem.partition(":")[0] for problem in problems] == [
        "--seed",
        "--held-out",
        "--taxid",
    ]
