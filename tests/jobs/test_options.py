"""Every job refuses URIs in place of paths, and NaN, before anything is created."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import pytest
import typer
import typer.models
from rich.text import Text

from raybio.cli import evaluate, search
from raybio.cli.app import NON_PATH_OPTIONS, check_uris, text_options_of
from raybio.cli.lazy import LazyGroup
from raybio.cli.main import Commands
from raybio.core.errors import ConfigError
from raybio.core.files import check_local
from raybio.runtime.run.options import default_folder
from tests.paths import ROOT
from tests.script_process import run_script

JOBS = ROOT / "jobs"
URI = "s3://bucket/store"
COMMANDS = {
    "benchmark": ["m", "--out", URI],
    "biostransformers": ["--config", URI],
    "compare": ["one", "two", "--out", URI],
    "contrastive_probe": ["--config", URI],
    "embed": ["--input", "a.fa", "--out", "o", "--run", URI],
    "evaluate": ["zero-shot", "--model", "m", "--data", "d", f"--out={URI}"],
    "finetune": ["scicite", "--data", "d", "--config", URI],
    "mtb_pretrain": ["--config", URI],
    "predict": ["m", "--input", "a.txt", "--out", "s3://bucket/table.tsv"],
    "preflight": ["--no-ray", "--space", URI],
    "prepare": ["medline", "--input", "a", "--out", "a", "--parts", URI],
    "relation_finetune": ["--config", URI],
    "relation_graphs": ["--config", "hdfs://bucket/config.yaml"],
    "sppt_mag": ["--compare", f"encoder.revision=main,{URI}"],
    "sppt_protein": ["--set", f"encoder.revision={URI}"],
    "sppt_synthetic": ["--all", "--config", "gs://bucket/config.yaml"],
    "sweep": ["s3://bucket/space.yaml"],
}
"""Job -> a whole command line with a URI in the place of a path."""


class Option(NamedTuple):
    """An option or argument of a command.

    Attributes:
        command: the command's name.
        name: such as ``--out``; without hyphens for an argument.
        kind: the type that its value has, such as ``Path``.
        info: what typer was given to describe it.
    """

    command: str
    name: str
    kind: type
    info: Any


def options_of(command: str, callback: Any) -> Iterator[Option]:
    """Yield an option for each parameter ``name: Annotated[type, typer.Option(...)]``."""
    for name, hint in get_type_hints(callback, include_extras=True).items():
        if name in ("return", "context"):
            continue
        annotated, *_, info = get_args(hint)
        kinds = {annotated, *get_args(annotated)}
        kinds |= {inner for kind in kinds for inner in get_args(kind)}
        # The words of a ``Literal`` are texts.
        (kind,) = kinds & {bool, int, float, str, Path} or {str}
        declared = [
            one for one in (info.default, *(info.param_decls or ())) if str(one).startswith("--")
        ]
        is_argument = isinstance(info, typer.models.ArgumentInfo)
        usual = name if is_argument else "--" + name.strip("_").replace("_", "-")
        yield Option(command, declared[0] if declared else usual, kind, info)


def commands_of(app: typer.Typer) -> Iterator[tuple[str, Any]]:
    for one in app.registered_commands:
        assert one.callback is not None
        yield one.name or one.callback.__name__, one.callback
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from commands_of(group.typer_instance)


def apps(group: type[LazyGroup] = Commands, words: str = "") -> Iterator[tuple[str, typer.Typer]]:
    """Yield (words that choose it, app) of every command of ``raybio``."""
    for name, entry in group.entries.items():
        app = entry.load()
        inner = app.info.cls
        if isinstance(inner, type) and issubclass(inner, LazyGroup):
            yield from apps(inner, f"{words}{name} ")
        else:
            yield f"{words}{name}", app


def all_commands() -> Iterator[Any]:
    waiting = [app for _, app in apps()]
    while waiting:
        app = waiting.pop()
        yield from app.registered_commands
        waiting += [group.typer_instance for group in app.registered_groups]


@pytest.fixture(scope="module")
def options() -> list[Option]:
    callbacks = [found for _, app in apps() for found in commands_of(app)]
    return [option for name, callback in callbacks for option in options_of(name, callback)]


def test_every_job_refuses_a_uri_in_the_place_of_a_path_and_creates_nothing(tmp_path: Path) -> None:
    assert set(COMMANDS) == {path.stem for path in JOBS.glob("*.py")} - {"launch"}
    for job, arguments in COMMANDS.items():
        folder = tmp_path / job
        folder.mkdir()
        done = run_script(JOBS / f"{job}.py", folder, *arguments, HOME=str(folder))
        assert done.returncode == 2, (job, done)
        assert done.stderr.count("object storage is not supported here") == 1, (job, done.stderr)
        assert sorted(path.name for path in folder.iterdir()) == ["stderr", "stdout"], job


def test_uris_are_only_taken_by_options_named_so(options: list[Option]) -> None:
    """Options that take paths are checked without a list; those that take URIs are listed."""
    assert len(options) > 250
    named_so = {
        option.name for option in options if option.name.endswith(("-uri", "-url", "--url"))
    }
    assert named_so == set(NON_PATH_OPTIONS)
    for option in {option.name for option in options if option.kind is not bool} - set(
        NON_PATH_OPTIONS
    ):
        name = option if option.startswith("--") else "argument"
        given = [option] if option.startswith("--") else []
        with pytest.raises(
            ConfigError, match=rf"^{name}: got the URI 's3://bucket/store', want a local path"
        ):
            check_uris([*given, URI])
    check_uris(
        [
            "--tracking-uri",
            "http://tracking:5000",
            "--url=https://ftp.ncbi.nlm.nih.gov/",
            "--out",
            "x",
        ]
    )
    check_uris(
        ["--tracking-uri", "sqlite:///a.db", "--verbose", "Does [Y] link to http://x.org?", "C:/x"]
    )


@pytest.mark.parametrize(
    "given",
    [
        ["--set", "x=[s3://b]"],
        ["--set", 'x="s3://b"'],
        ["--set", "x=['a', 's3://b']"],
        ["--set", "x={a: s3://b}"],
        ["--set", "x=a,s3://b,c"],
        ["--set= s3://b"],
        ["--compare", "a=[s3://b]"],
        ["--compare=a=1,[s3://b]"],
        ["(s3://b)"],
    ],
)
def test_a_uri_anywhere_in_an_argument_is_refused(given: list[str]) -> None:
    with pytest.raises(
        ConfigError, match=r"^(--set|--compare|argument): got the URI 's3://b', want a local path"
    ):
        check_uris(given)


@pytest.mark.parametrize(
    "value", ["s3://own/m", "a/hub-id,s3://own/m", "[s3://own/m, 'gs://own/n']", "file:///m"]
)
def test_the_source_of_an_encoder_may_be_a_uri(value: str) -> None:
    for option in ("--set", "--compare"):
        check_uris([option, f"encoder.source={value}"])
        check_uris([f"{option}= encoder.source = {value}"])
        with pytest.raises(ConfigError, match=f"^{option}: got .* is not supported"):
            check_uris([option, f"encoder.source={value},hdfs://own/m"])


@pytest.mark.parametrize(
    "text", ["GEO (https://x.org/geo/) is a database", "Data: https://x.org", "https://x.org"]
)
def test_a_text_may_hold_any_link(text: str) -> None:
    arguments = ["query", "index", "--text", text, f"--text={text}"]
    check_uris(arguments, text_options=text_options_of(search.app, arguments))
    arguments = ["ask", text, "--k", "3", text]
    texts = text_options_of(evaluate.app, arguments)
    check_uris(arguments, text_options=texts)
    with pytest.raises(ConfigError, match="^--index: got the URI"):
        check_uris(["--index", "s3://bucket/a"], text_options=texts)
    assert text_options_of(evaluate.app, ["probe"]) == set()


@pytest.mark.parametrize("given", [["--store", "s3:/b"], ["--store=s3:/b"]])
def test_a_uri_with_one_slash_is_refused(given: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"^--store: got the URI 's3:/b', want a local path"):
        check_uris(given)


@pytest.mark.parametrize(
    "value",
    [
        "text=http:",
        "text=a:b/c",
        "x={a: b/c}",
        "a/b:/c",
        "d:/x",
        "See http://x.org. Is it so? http://y.org",
    ],
)
def test_what_is_no_uri_in_the_place_of_a_path_is_taken(value: str) -> None:
    check_uris(["--set", value, value])


@pytest.mark.parametrize("variable", ["RAYBIO_RUNS", "RAYBIO_STORES", "RAYBIO_SWEEPS"])
def test_a_uri_in_an_environment_variable_is_refused(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, URI)
    with pytest.raises(ConfigError, match=f"^{variable}: got the URI"):
        default_folder("runs", variable)


def test_a_uri_is_refused_in_python_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from raybio.core.files import atomic_folder
    from raybio.encoders.checkpoints import check_source
    from raybio.runtime.run.folder import RunFolder
    from raybio.store.store import open_store
    from raybio.store.writer import Draft

    monkeypatch.chdir(tmp_path)
    for path in (URI, Path(URI)):
        for make in (lambda one: RunFolder(one, "name"), Draft):
            with pytest.raises(ConfigError, match="object storage is not supported here"):
                make(path)
    with pytest.raises(ConfigError, match="^store: got 's3:/bucket/store', want two slashes"):
        open_store(Path(URI))
    with pytest.raises(ConfigError, match="object storage"), atomic_folder(Path(URI)):
        pass
    with pytest.raises(ConfigError, match="^encoder.source: got the URI"):
        check_source(URI, "main")
    assert not list(tmp_path.iterdir())
    for path in ("a:/b", "runs/s3://x", "", ".", "/s3:/x"):
        check_local(path, "--out")


def test_no_help_loses_words_in_square_brackets(options: list[Option]) -> None:
    """Help is markup: ``raybio[onnx]`` would be shown as ``raybio``."""
    helps = [option.info.help or "" for option in options]
    helps += [one.help or one.callback.__doc__ or "" for one in all_commands()]
    assert len(helps) > 300
    assert [text for text in helps if Text.from_markup(text).plain != text] == []


def test_no_option_takes_a_number_that_is_none(options: list[Option]) -> None:
    floats = [option for option in options if option.kind is float]
    assert len(floats) > 20
    for option in floats:
        assert option.info.parser is not None, option
        for text in ("nan", "inf", "-inf", "-0.5", "1e999", "many"):
            with pytest.raises(typer.BadParameter, match=f"got {text}, want a number"):
                option.info.parser(text)
        assert option.info.parser("0.5") == 0.5


def test_every_whole_number_has_a_range(options: list[Option]) -> None:
    """Its own, or that of the setting of a configuration, which its help states."""
    integers = [option for option in options if option.kind is int]
    assert len(integers) > 60
    for option in integers:
        assert option.info.min is not None or re.search(r">=? *\d|\d *<=? ", option.info.help), (
            option
        )


@pytest.mark.parametrize(
    ("job", "arguments", "names"),
    [
        ("sppt_protein", ["--workers", "0"], "--workers"),
        ("sppt_protein", ["--cpus-per-worker", "nan"], "--cpus-per-worker"),
        ("sppt_protein", ["--cpus-per-worker", "0"], "--cpus-per-worker"),
        ("sppt_protein", ["--seeds", "0"], "--seeds"),
        ("sweep", ["space.yaml", "--gpus-per-worker", "inf"], "--gpus-per-worker"),
        ("preflight", ["--no-ray", "--cpus-per-worker", "nan"], "--cpus-per-worker"),
        (
            "embed",
            ["--input", "a", "--out", "b", "--model", "m", "--rows-per-part", "0"],
            "--rows-per-part",
        ),
    ],
)
def test_a_number_out_of_range_is_refused_and_nothing_is_created(
    job: str, arguments: list[str], names: str, tmp_path: Path
) -> None:
    done = run_script(JOBS / f"{job}.py", tmp_path, *arguments, HOME=str(tmp_path))
    assert done.returncode == 2, done
    assert names in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stderr", "stdout"]


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_cpus_that_are_no_number_are_refused_in_python_too(number: float) -> None:
    from raybio.core.errors import ClusterError
    from raybio.runtime.cluster.resources import Node, check_resources

    with pytest.raises(
        ClusterError, match="--cpus-per-worker: got (nan|inf), want a number above 0"
    ):
        check_resources(1, number, [Node(4.0, 0.0)])
