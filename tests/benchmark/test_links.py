"""Held-out links of a benchmark by class: the figures are those of ``raybio evaluate links``."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from raybio.benchmark.models import BenchmarkModel, read_models
from raybio.benchmark.tasks.links import LinksTask
from raybio.core.errors import ConfigError
from raybio.core.final_report import FinalReport
from raybio.methods import METHODS
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.model_links import evaluate_model_links
from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.proteins.formats.tables import Tables
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.methods.sppt.table import LINK_RETRIEVAL
from raybio.runtime.model_folders import model_of_folder
from tests.conftest import write_tables
from tests.methods.conformance_cases import tiny_config

HeldOut = Literal["random", "proteins", "homology"]


def write_families(folder: Path) -> Tables:
    """Write 64 proteins of 16 families; links are within and between families."""
    tables = write_tables(folder / "raw", num_groups=2, rows_per_group=32, num_families=16)
    rng = np.random.default_rng(0)
    with (folder / "raw" / "edges.tsv").open("a") as file:
        for group in (1, 2):
            for first, second in rng.integers(32, size=(60, 2)).tolist():
                if first != second:
                    file.write(f"{group}.p{first:03d}\t{group}.p{second:03d}\n")
    return tables


def prepared(folder: Path, held_out: HeldOut) -> ProteinStore:
    config = PrepareConfig(heldout_share=0.2, held_out=held_out)
    return prepare_proteins(folder / "store", write_families(folder), config)


def evaluated(
    folder: Path, store: ProteinStore, **settings: object
) -> tuple[BenchmarkModel, FinalReport]:
    """An encoder, and what the single command says of it."""
    system = METHODS["sppt_protein"].build(tiny_config("sppt_protein", **settings), store.path)
    export = Path(system.export(folder / "proteins", {}))
    (model,) = read_models([str(export)], folder / "report")
    assert isinstance(model, BenchmarkModel)
    return model, evaluate_model_links({"proteins": model_of_folder(export)}, store.path)


@pytest.mark.first_tier("homology")
@pytest.mark.parametrize("held_out", ["random", "proteins", "homology"])
def test_links_of_each_class_have_the_figures_of_evaluate_links(
    held_out: HeldOut, tmp_path: Path
) -> None:
    store = prepared(tmp_path, held_out)
    model, links = evaluated(tmp_path, store)
    measured = links.scores["trained"]
    counts = store.manifest["leakage"]
    classes = [name for name in ("c1", "c2", "c3") if 0 < counts[name] < counts["links"]]
    splits: list[Any] = ["val", *classes]
    if 0 < counts["with_twin"] < counts["links"]:
        splits.append("no_twins")
    assert set(splits) == measured.keys() - {"train"}
    for split in splits:
        task = LinksTask(name=split, store=store.path, scored=split)
        scores = task.score(model)
        assert scores.score == pytest.approx(measured[split]["lrap"]["value"])
        assert scores.numerator_U.mean() == pytest.approx(scores.score)
        found = {f"LRAP, {LINK_RETRIEVAL.splits[split]}": scores.score, **scores.others}
        for other in splits:
            title = LINK_RETRIEVAL.splits[other]
            assert found[f"LRAP, {title}"] == pytest.approx(measured[other]["lrap"]["value"])
            assert found[f"AP, {title}"] == measured[other]["average_precision"]["value"]
        rivals = task.rivals(model)
        for name in ("degree", "common neighbors", "random", "chance"):
            expected = links.scores[name][split]["lrap"]["value"]
            assert rivals[name].score == pytest.approx(expected)
        assert LINK_RETRIEVAL.splits[split] in task.facts().protocol


def test_remarks_are_those_of_evaluate_links_without_the_name_of_the_model(tmp_path: Path) -> None:
    store = prepared(tmp_path, "random")
    # The page names the model in front of each remark.
    model, links = evaluated(tmp_path, store, **{"input.max_length": 8})
    scores = LinksTask(name="own", store=store.path).score(model)
    assert [f"proteins: {remark}" for remark in scores.remarks] == links.remarks != []


def test_links_of_files_are_those_of_a_store_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    tables = write_families(tmp_path)
    (edges,) = tables.edges
    (proteins,) = tables.proteins
    lines = edges.read_text().splitlines()
    scored = [f"{line}\t{number % 3}" for number, line in enumerate(lines[1:])]
    edges.write_text("\n".join([f"{lines[0]}\tscore", *scored]) + "\n")
    task = LinksTask(name="own", edges=edges, proteins=proteins, held_out="proteins", min_score=1)
    assert task.check() == "" and task.reads == "proteins"
    assert set(task.files()) == {"edges", "proteins"}
    config = PrepareConfig(held_out="proteins", min_score=1)
    store = prepare_proteins(tmp_path / "store", tables, config)
    of_store = LinksTask(name="own", store=store.path)
    assert task.facts() == of_store.facts()
    assert f"{len(store.heldout)} held-out links" in task.facts().size
    model, _ = evaluated(tmp_path, store)
    assert task.score(model).score == of_store.score(model).score
    # Other links of the same proteins are held out, and these are embedded once.
    at_random = LinksTask(name="own", edges=edges, proteins=proteins, min_score=1)
    assert at_random.score(model).unit_ids != task.score(model).unit_ids
    assert len(list((tmp_path / "report").rglob("*.npy"))) == 1
    for wrong in ({"edges": edges}, {"edges": edges, "proteins": proteins, "store": store.path}):
        with pytest.raises(ConfigError, match="want one of store, demo, and edges with proteins"):
            LinksTask(name="own", **wrong).check()
    with pytest.raises(
        ConfigError, match="task own: held_out is ignored without edges; leave it out"
    ):
        LinksTask(name="own", store=store.path, held_out="homology").check()
    with pytest.raises(ConfigError, match="held_out and min_score are ignored .* leave them out"):
        LinksTask(name="own", demo="sppt_protein", held_out="homology", min_score=1).check()
    assert LinksTask(name="own", store=store.path, held_out="random").check() == ""
    assert (
        "want links and sequences"
        in LinksTask(name="own", edges=tmp_path / "none", proteins=proteins).check()
    )


def test_a_class_without_links_is_refused_with_the_classes_of_the_store(tmp_path: Path) -> None:
    store = prepared(tmp_path, "homology")
    counts = store.manifest["leakage"]
    assert counts["c1"] == 0
    model, _ = evaluated(tmp_path, store)
    task = LinksTask(name="links", store=store.path, scored="c1")
    with pytest.raises(ConfigError, match="scored c1, but none or all .* its splits: train, .*val"):
        task.score(model)
