"""Every option of every command takes URIs, or refuses them before anything is created.

Options are found by introspection: a new one is tested without being listed. Options that take URIs are those whose
parser reads them.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

# Imported by a test whose HOME must stay empty, it would write there.
import matplotlib.pyplot  # noqa: F401
import pytest
import typer.models

from raybio.cli import app as cli_app
from raybio.cli.main import main
from raybio.cli.options import FREE_TEXT, URI_PARSERS
from raybio.cli.stores import matching
from raybio.core.errors import ConfigError
from raybio.core.records import write_record
from raybio.methods import METHODS
from raybio.store.bucket import BucketFolder
from tests.jobs.test_options import apps, commands_of
from tests.s3 import ENVIRONMENT, S3

FILE = __file__
"""A file that exists; it is not read."""

MODEL = "../model"
"""A folder with the record of a model that predicts; it has no weights."""

COMPLETE = {
    "medline": ["--input", FILE, "--out", "out"],
    "pairs": ["--input", FILE, "--out", "out"],
    "documents": ["--input", FILE, "--out", "out"],
    "spert": ["--input", FILE, "--out", "out"],
    "proteins": ["--edges", FILE, "--proteins", FILE, "--out", "out"],
    "articles": ["--openalex", FILE, "--out", "out"],
    "topics": ["--input", FILE, "--out", "out"],
    "predict": [MODEL, "--input", FILE, "--out", "out.tsv"],
    "export": [MODEL, "--onnx", "out"],
    "push": [MODEL, "owner/name"],
    "serve": [MODEL],
    "query": ["index", "--input", FILE],
    "index": ["--embeddings", FILE, "--out", "out"],
    "zero-shot": ["--data", FILE, "--out", "out", "--model", "m"],
    "probe": ["--benchmark", FILE, "--out", "out", "--model", "m"],
    "ask": ["What might treat [Y].", "--names", FILE, "--model", "m"],
    "baselines": ["--benchmark", FILE, "--model", "m", "--methods", "hybrid", "--rewired", "m"],
    "embed": ["--input", FILE, "--model", "m", "--out", "out.parquet"],
    "compare": ["a", "b"],
    "curves": ["--run", "a", "--out", "out"],
    "word-statistics": [],
    "recurring-pairs": [],
    "medlama": ["--umls", FILE, "--out", "out"],
    "hardness": ["--benchmark", FILE],
    "statistics": ["--benchmark", FILE, "--out", "out"],
    "sheet": ["--filled", FILE, "--benchmark", FILE, "--out", "out"],
    "synthetic": ["--all"],
    "relations": ["--store", "store", "--model", "m"],
    "relation-probe": ["--store", "store", "--model", "m"],
    "relation-map": ["--store", "store", "--model", "m", "--out", "out"],
    "entities-relations": ["--store", "store", "--relations", "m", "--entities", "m"],
    "sentence-graphs": ["--store", "store", "--model", "m"],
    "word-maps": ["--store", "store", "--relations", "m", "--out", "out"],
    "link-samples": ["--store", "store", "--model", "m"],
    "task-fit": ["--labels", FILE, "--store", "store"],
    "links": ["--store", "store", "--model", "m", "--out", "out"],
    "retrieval": [
        *("--model", "m", "--corpus", FILE, "--queries", FILE, "--qrels", FILE, "--out", "out")
    ],
    "explore": ["m.parquet"],
    "benchmark": ["m", "--out", "out"],
}
"""Command -> arguments with which it starts; an option under test replaces its own."""

SINGLE = {"train sppt_synthetic": "synthetic"} | {
    name: name
    for name in ("predict", "embed", "compare", "explore", "export", "push", "serve", "benchmark")
}
"""Words of an app of one command -> its key in ``COMPLETE``."""

MORE = {
    ("articles", "--abstracts"): ["--mag", "mag"],
    ("articles", "--nodes"): ["--edges", FILE],
    ("articles", "--edges"): ["--nodes", FILE],
    ("articles", "--cane"): [],
    ("articles", "--mag"): ["--abstracts", FILE],
    ("query", "--input"): ["index"],
    ("proteins", "--interactomes"): ["--species", FILE, "--sequences", FILE],
    ("proteins", "--species"): ["--interactomes", "folder", "--sequences", FILE],
    ("proteins", "--sequences"): ["--interactomes", "folder", "--species", FILE],
}
"""Command and option -> the arguments that it goes with, instead of those of ``COMPLETE``."""


class Option(NamedTuple):
    """An option of a command.

    Attributes:
        words: words of ``raybio`` that choose its app, such as ``train finetune``.
        command: name of its command; "" for the only one.
        name: such as ``--out``; without hyphens for an argument.
        takes_uris: whether its parser reads URIs.
    """

    words: str
    command: str
    name: str
    takes_uris: bool
    is_text: bool = False

    @property
    def is_argument(self) -> bool:
        """Whether it is given without its name."""
        return not self.name.startswith("--")


def options_of(words: str, command: str, callback: Any) -> Iterator[Option]:
    for name, hint in get_type_hints(callback, include_extras=True).items():
        if name in ("return", "context"):
            continue
        annotated, *infos = get_args(hint)
        info = infos[-1]
        if bool in (annotated, *get_args(annotated)):
            continue
        declared = [
            one for one in (info.default, *(info.param_decls or ())) if str(one).startswith("--")
        ]
        usual = name if isinstance(info, typer.models.ArgumentInfo) else f"--{name.strip('_')}"
        option = declared[0] if declared else usual.replace("_", "-")
        yield Option(words, command, option, info.parser in URI_PARSERS, FREE_TEXT in infos)
    for option in getattr(callback, "uri_options", ()):
        yield Option(words, command, option, takes_uris=True)


def all_options() -> list[Option]:
    """Return every option that takes a value, of every command."""
    options = []
    for words, app in apps():
        found = list(commands_of(app))
        for name, callback in found:
            command = name.replace("_", "-")
            if words == "prepare" and callback.__module__ == "raybio.cli.download":
                command = f"download {command}"
            chosen = command if len(found) > 1 else ""
            options += [
                option._replace(command=chosen) for option in options_of(words, command, callback)
            ]
    return options


OPTIONS = all_options()
URI_OPTIONS = [option for option in OPTIONS if option.takes_uris]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[Option, list[str]], tuple[int, str]]:
    """Call a command line in an empty folder, and return its exit code and what it wrote to stderr."""
    folder = tmp_path / "empty"
    folder.mkdir()
    (tmp_path / "model").mkdir()
    settings = {"trained_by": "relation_finetune", "knn_settings": {"num_neighbors": 1}}
    write_record(tmp_path / "model" / "relation.json", "export settings", settings)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("RAYBIO_CACHE", str(folder / "cache"))
    for name in ("RAYBIO_RUNS", "RAYBIO_STORES", "RAYBIO_SWEEPS"):
        monkeypatch.delenv(name, raising=False)

    def call_it(option: Option, arguments: list[str]) -> tuple[int, str]:
        words = f"{option.words} {option.command}".split()
        monkeypatch.setattr(sys, "argv", ["raybio", *words, *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        written = capfd.readouterr()
        assert list(folder.iterdir()) == [], (option, written)
        return int(ended.value.code or 0), written.err

    return call_it


def assert_refused(option: Option, result: tuple[int, str], wanted: str) -> None:
    code, message = result
    assert code == 2, (option, result)
    assert len(message.strip().splitlines()) == 1, (option, message)
    assert wanted in message, (option, message)
    assert ENVIRONMENT["AWS_SECRET_ACCESS_KEY"] not in message


def test_there_are_options_of_both_kinds() -> None:
    assert len(OPTIONS) > 250
    assert {option.name for option in URI_OPTIONS} >= {"--store", "--out", "--input", "--proteins"}
    # All that take a model, whatever they call it.
    assert {option.name for option in URI_OPTIONS} >= {"--init", "--model", "--rewired", "model"}
    assert [option for option in OPTIONS if "model" in option.name and not option.takes_uris] == []
    # What a training takes, every training takes.
    stores = {option.words for option in URI_OPTIONS if option.name == "--store"}
    trainings = {f"train {method}" for method in METHODS}
    assert stores >= {*trainings, "sweep", "preflight", "evaluate"}


def test_every_other_option_refuses_uris(call: Callable[[Option, list[str]], Any]) -> None:
    for option in OPTIONS:
        if option.takes_uris or option.is_text or option.name in cli_app.NON_PATH_OPTIONS:
            continue
        given = [] if option.is_argument else [option.name]
        if option.words == "push" and option.is_argument:
            given = [MODEL]
        for uri in ("s3://bucket/a", "gs://bucket/a", "file:///a", "hdfs://host/a"):
            wanted = f"got the URI '{uri}'"
            if given == [MODEL] and uri.startswith("hdfs"):
                wanted = f"got '{uri}'"
            assert_refused(option, call(option, [*given, uri]), wanted)


@pytest.mark.parametrize(
    ("uri", "wanted"),
    [
        ("hdfs://host/a", "hdfs: is not supported"),
        ("s3://", "want a bucket"),
        ("s3:/bucket/a", "two slashes"),
        ("s3://KEY:never-shown-secret@bucket/a", "a URI with credentials"),
    ],
)
def test_uris_that_are_not_supported_are_refused_by_name(
    uri: str, wanted: str, call: Callable[[Option, list[str]], Any]
) -> None:
    for option in URI_OPTIONS:
        if option.is_argument:
            assert_refused(option, call(option, [uri]), "argument: got")
            assert_refused(option, call(option, [uri]), wanted)
            continue
        assert_refused(option, call(option, [option.name, uri]), f"{option.name}: got")
        assert_refused(option, call(option, [f"{option.name}={uri}"]), wanted)


def test_an_argument_may_be_a_uri_after_a_flag_and_not_as_the_value_of_an_option() -> None:
    from raybio.cli import predict

    names = cli_app.uri_options_of(predict.app, [])
    cli_app.check_uris(["--strip-stop", "s3://bucket/m", "--input", "s3://bucket/a"], names)
    with pytest.raises(ConfigError, match="^--out: got the URI"):
        cli_app.check_uris(["s3://bucket/m", "--out", "s3://bucket/a"], names)


def complete(option: Option, uri: str) -> list[str]:
    """Return arguments with which the command starts, with the URI for the option."""
    if (option.command, option.name) in MORE:
        more = MORE[option.command, option.name]
        out = [] if option.words == "search" else ["--out", "out"]
        return [*more, *out, option.name, uri]
    if option.name == "--data" and option.words == "train finetune":
        return ["protein_regression", option.name, uri]
    if option.name == "--benchmark" and option.words == "train contrastive_probe":
        return ["--sentences", FILE, option.name, uri]
    command = option.command
    if option.words in SINGLE:
        command = SINGLE[option.words]
    if option.words == "sweep":
        return ["sppt_protein", "--dry-run", option.name, uri]
    arguments = list(COMPLETE[command]) if command else []
    if option.is_argument:
        return [uri, *arguments[1:]]
    if option.name in arguments:
        index = arguments.index(option.name)
        del arguments[index : index + 2]
    if option.words == "embed" and option.name == "--runs":
        return ["--input", FILE, "--run", "m", "--out", "out.parquet", option.name, uri]
    if option.words == "embed" and option.name == "--out":
        uri = f"{uri}.parquet"  # Another suffix is refused without asking the bucket.
    return [*arguments, option.name, uri]


@pytest.mark.first_tier("missing bucket", "no answer")
@pytest.mark.parametrize(
    "case",
    [
        *("missing bucket", "no permission", "no permission to list", "ignored conditions"),
        *("no credentials", "no answer"),
    ],
)
def test_a_bucket_that_cannot_be_used_is_refused_before_anything_is_created(
    case: str,
    s3: S3,
    call: Callable[[Option, list[str]], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = str(s3.new_bucket() / "a")
    wanted = {
        "missing bucket": "there is no bucket 'no-such-bucket'",
        "no permission": "no permission to",
        "no permission to list": "no permission to list",
        "ignored conditions": "the server ignores conditions",
        "no credentials": "no credentials were found",
        "no answer": "no answer at 127.0.0.1:9",
    }[case]
    if case == "missing bucket":
        uri = "s3://no-such-bucket/a"
    elif case == "no permission":
        s3.fail("denied", times=10_000)
    elif case == "no permission to list":
        s3.fail("denied", containing="list-type", times=10_000)
    elif case == "ignored conditions":
        monkeypatch.setattr(BucketFolder, "create", BucketFolder.write)
    elif case == "no credentials":
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    else:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    tested = [option for option in URI_OPTIONS if option.words != "preflight"]
    if case == "no answer":
        # Each takes seconds; all options take the same way.
        tested = [
            next(option for option in tested if option.name == name)
            for name in ("--store", "--out", "--input")
        ]
    if case in ("no permission to list", "ignored conditions"):
        # What is written under a lease: one training stands for all.
        tested = [
            option
            for option in tested
            if option.words in ("embed", "sweep", "train biostransformers")
            and option.name in ("--runs", "--sweeps", "--out")
            and (option.words, option.name) != ("embed", "--runs")
        ]
        assert len(tested) == 3
    for option in tested:
        assert_refused(option, call(option, complete(option, uri)), wanted)


VARIABLES = {
    "RAYBIO_RUNS": Option("train sppt_protein", "", "", True),
    "RAYBIO_SWEEPS": Option("sweep", "", "", True),
    "RAYBIO_STORES": Option("train sppt_protein", "", "", False),
    "RAYBIO_CACHE": Option("train sppt_protein", "", "", False),
}
"""Variable -> a command that reads it, and whether it takes URIs."""


@pytest.mark.parametrize("variable", VARIABLES)
def test_variables_take_uris_or_refuse_them_as_options_do(
    variable: str,
    s3: S3,
    call: Callable[[Option, list[str]], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    option = VARIABLES[variable]
    arguments = ["sppt_protein"] if option.words == "sweep" else []

    def refused(uri: object, wanted: str) -> None:
        monkeypatch.setenv(variable, str(uri))
        assert_refused(option, call(option, arguments), wanted)

    bucket = s3.new_bucket() / "a"
    if not option.takes_uris:
        if variable == "RAYBIO_CACHE":
            # It is read where runs lie in a bucket.
            monkeypatch.setenv("RAYBIO_RUNS", str(bucket))
        for uri in (bucket, "hdfs://host/a", "s3:bucket/a"):
            refused(uri, f"{variable}: got the URI '{uri}'")
        return
    refused("hdfs://host/a", f"{variable}: got 'hdfs://host/a'")
    refused("s3:bucket/a", "want two slashes")
    refused("s3://no-such-bucket/a", "there is no bucket 'no-such-bucket'")
    s3.fail("denied", times=10_000)
    refused(bucket, "no permission to")
    s3.heal()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    refused(bucket, "no credentials were found")


def test_a_file_of_several_patterns_comes_with_the_last_of_them(tmp_path: Path) -> None:
    for name in ("a_corrections.tsv", "b_old.tsv"):
        (tmp_path / name).touch()
    files = matching([str(tmp_path / "*.tsv"), str(tmp_path / "a_corrections.tsv")])
    assert [file.name for file in files] == ["b_old.tsv", "a_corrections.tsv"]


def test_a_pattern_leaves_out_what_downloads_write_next_to_a_file(tmp_path: Path) -> None:
    for name in ("links.txt.gz", "links.txt.gz.sha256", "more.txt.gz.part", "more.txt.gz.md5"):
        (tmp_path / name).touch()
    assert [file.name for file in matching([str(tmp_path / "*.txt.*")])] == ["links.txt.gz"]
    (checksum,) = matching([str(tmp_path / "*.sha256")])
    assert checksum.name == "links.txt.gz.sha256"
