import gzip
import re
from pathlib import Path

import numpy as np
import pytest
import typer

from raybio.cli.contrastive_probe.query import ask
from raybio.core.errors import ConfigError, DataError, StoreError
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.sentence_folder import write_sentence_files
from raybio.encoders.text import build_text_encoder
from tests import oracles
from tests.encoders.tiny_text import embed, save_tiny

pytest.importorskip("faiss")
NAMES = ["Asthma", "risk factors", "life", "tropical country", "cohort", "illness"]
QUERY = "Asthma might treat [Y]."


@pytest.fixture
def model(tmp_path: Path) -> str:
    return save_tiny(tmp_path / "tiny")


@pytest.fixture
def names(tmp_path: Path) -> Path:
    """Blanks, empty lines and a name that comes again."""
    path = tmp_path / "names.txt"
    path.write_text("\n".join([NAMES[0], "", f"  {NAMES[1]} ", *NAMES[2:], NAMES[0]]) + "\n")
    return path


def call(*arguments: object) -> None:
    app = typer.Typer()
    app.command()(ask)
    app([str(argument) for argument in arguments], standalone_mode=False)


def rows(output: str) -> list[tuple[str, float]]:
    """(name, distance) of all lines of tables."""
    found = re.findall(r"^ +\d+ +(\d+\.\d+)  (.+)$", output, re.MULTILINE)
    return [(name, float(distance)) for distance, name in found]


def test_the_nearest_names_of_each_query_are_printed_with_their_distances(model, names, capsys):
    queries = [QUERY, "life occurs after [Y]"]
    call(*queries, "--model", model, "--names", names, "--k", 4)
    output = capsys.readouterr().out
    encoder = build_text_encoder(
        TextEncoderConfig(source=model, pooling="cls", max_length=50), seed=0
    )
    vectors = np.concatenate([embed(encoder, [name]) for name in NAMES])
    expected = []
    for query in queries:
        (query_D,) = embed(encoder, [query.replace("[Y]", "[MASK]")])
        near = sorted(
            (oracles.distance(query_D, vector), name)
            for vector, name in zip(vectors, NAMES, strict=True)
        )
        expected += [(name, distance) for distance, name in near[:4]]
    assert [name for name, _ in rows(output)] == [name for name, _ in expected]
    np.testing.assert_allclose(
        [one for _, one in rows(output)], [one for _, one in expected], atol=1e-4
    )
    assert "embedding 6 names, cls pooling" in output
    assert all(f"\n{query}\n" in output for query in queries)


def test_a_second_call_uses_the_saved_embeddings_and_gives_the_same_names(
    model, names, tmp_path, capsys, monkeypatch
):
    arguments = [QUERY, "--model", model, "--names", names, "--index", tmp_path / "index"]
    call(*arguments)
    first = capsys.readouterr().out
    call(*arguments)
    second = capsys.readouterr().out
    assert "embedding 6 names" in first and "embedding" not in second
    assert rows(first) == rows(second) and len(rows(second)) == 6
    call(*arguments[:-2])
    assert rows(capsys.readouterr().out) == rows(first)
    # A shell leaves ~ as it is behind "--index=".
    monkeypatch.setenv("HOME", str(tmp_path))
    call(*arguments[:-1], "~/index")
    assert rows(capsys.readouterr().out) == rows(first)
    one = tmp_path / "one.txt"
    one.write_text("life\n")
    call(QUERY, "--model", model, "--names", one)
    with pytest.raises(ConfigError, match="--index: got 1 name, want at least 2"):
        call(QUERY, "--model", model, "--names", one, "--index", tmp_path / "small")


def test_what_is_cut_is_said(model, tmp_path, capsys):
    names = tmp_path / "names.txt"
    names.write_text(f"life\n{'illness ' * 40}\n")
    call(f"{'cohort ' * 80} treats [Y].", "--model", model, "--names", names)
    shown = capsys.readouterr().out
    assert "names: 1 of 2 cut at 25 of" in shown
    assert "queries: 1 of 1 cut at 50 of" in shown


def test_an_index_of_another_model_of_other_names_or_pooling_is_refused(model, names, tmp_path):
    index = tmp_path / "index"
    call(QUERY, "--model", model, "--names", names, "--index", index)
    other = save_tiny(tmp_path / "other", "electra")
    more = tmp_path / "more.txt"
    more.write_text("life\ncohort\n")
    for changed, what in (
        (["--model", other, "--names", names], "model"),
        (["--model", model, "--names", more], "names"),
        (["--model", model, "--names", names, "--pooling", "mean"], "pooling"),
    ):
        with pytest.raises(
            StoreError, match=f"differ from the given ones in: {what}. Choose another folder"
        ):
            call(QUERY, *changed, "--index", index)


def test_names_may_be_a_benchmark_or_a_gzip_file_and_pooling_comes_from_the_folder(
    model, tmp_path, capsys
):
    write_sentence_files(Path(model), width=32, pooling="mean", max_tokens=50)
    packed, benchmark = tmp_path / "names.txt.gz", tmp_path / "benchmark"
    packed.write_bytes(gzip.compress("Asthma\nlife\nβ-amyloid\n".encode()))
    benchmark.mkdir()
    lines = [
        "head_cui,head_name,rel,tail_names,tail_cuis",
        "C1,Asthma,may_treat,life || β-amyloid,C2 || C3",
    ]
    (benchmark / "may_treat_1.csv").write_text("\n".join(lines) + "\n")
    outputs = []
    for source in (packed, benchmark):
        call(QUERY, "--model", model, "--names", source)
        outputs.append(capsys.readouterr().out)
    assert rows(outputs[0]) == rows(outputs[1])
    assert {name for name, _ in rows(outputs[0])} == {"Asthma", "life", "β-amyloid"}
    assert "embedding 3 names, mean pooling" in outputs[0]


@pytest.mark.parametrize(
    "query", ["Asthma might treat", "[Y] might treat [Y]", "Asthma might treat [MASK]"]
)
def test_a_query_without_exactly_one_gap_is_refused_before_the_model_is_loaded(query, names):
    with pytest.raises(ConfigError, match=r"want \[Y\] once, where the answer belongs"):
        call(query, "--model", "nowhere", "--names", names)


def test_a_query_that_contains_a_mask_token_is_refused(model, names, capsys):
    with pytest.raises(ConfigError, match=r"has \[MASK\] next to \[Y\]"):
        call("[Y] might treat [MASK]", "--model", model, "--names", names)
    assert "embedding" not in capsys.readouterr().out


def test_a_long_query_is_cut_around_the_gap(model, names, capsys):
    outputs = []
    for query in ("life " * 60 + "[Y]", "life " * 47 + "[Y]", "life " * 60 + "[Y] life"):
        call(query, "--model", model, "--names", names)
        outputs.append(rows(capsys.readouterr().out))
    assert outputs[0] == outputs[1] != outputs[2]


def test_missing_names_and_wrong_options_are_refused(model, names, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n")
    for source, message in (
        (empty, "holds no name; want one a line"),
        (tmp_path / "nowhere.txt", "nowhere.txt"),
    ):
        with pytest.raises(DataError, match=message):
            call(QUERY, "--model", model, "--names", source)
    with pytest.raises(ConfigError, match="is a file; want a folder"):
        call(QUERY, "--model", model, "--names", names, "--index", names)
