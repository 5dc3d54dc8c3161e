"""The model card of a run, as huggingface_hub reads it, and the code in it."""

import math
import re
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

from raybio.core.errors import ConfigError
from raybio.core.final_report import FinalReport
from raybio.core.records import read_record, write_record
from raybio.encoders.model_card import Card
from raybio.methods import METHODS
from raybio.runtime.run.card import run_card
from raybio.runtime.run.encoder_source import encoder_record
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.run_loop import Training, train_single_process
from raybio.store.store import Store
from tests.methods.conformance_cases import tiny_config

NAME = "sppt_protein"


def trained(store: Store, runs: Path, name: str, **settings: object) -> RunFolder:
    """Return a run of two steps with a checkpoint after the first, as its process leaves it."""
    steps = {"schedule.max_steps": 2, "schedule.evaluate_every_steps": 1}
    config = tiny_config(NAME, **steps, **settings)
    system = METHODS[NAME].build(config, store.path)
    folder = RunFolder(runs, name)
    folder.open(NAME, config, Path(store.path), store.digest, ())
    folder.record_encoder(encoder_record(config))
    write_record(folder.launch, "launch", {"workers": 1, "threads_per_worker": 3})
    training = Training(system=system, config=config, folder=folder, device="cpu", precision="fp32")
    assert [report.is_last for report in train_single_process(training)][-1]
    return folder


@pytest.fixture(scope="module")
def runs(tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    """Return a run from random weights, and one that begins with its export."""
    folder = tmp_path_factory.mktemp("runs")
    first = trained(tiny_store, folder, "first")
    card = first.export / "README.md"
    text = card.read_text().replace("---\n", "---\nlicense: mit\nbase_model: tiny/esm\n", 1)
    card.write_text(text)
    return [first, trained(tiny_store, folder, "second", **{"encoder.source": str(first.export)})]


def test_the_hub_reads_the_scores_of_a_run_with_their_intervals(
    runs: list[RunFolder], tiny_store: Store
) -> None:
    card = ModelCard.load(runs[1].export / "README.md")
    final = read_record(runs[1].outcome, "outcome")["final"]["scores"]["trained"]
    layout = METHODS[NAME].table
    found = {
        (result.dataset_split, result.metric_type): (result.metric_value, result.metric_args)
        for result in card.data.eval_results
    }
    assert set(found) == {
        (split, measure)
        for split in layout.compared
        if split in final
        for measure in layout.measures
    }
    for (split, measure), (value, interval) in found.items():
        score = final[split][measure]
        assert (value, interval["low"], interval["high"]) == (
            score["value"],
            score["low"],
            score["high"],
        )
    result = card.data.eval_results[0]
    assert result.dataset_revision == runs[1].read_identity()["data_digest"].split()[0]
    assert card.data.model_name == "second"
    # The table has the rivals, too.
    score = final["val"]["lrap"]
    interval = f"{100 * score['value']:.2f} [{100 * score['low']:.2f}, {100 * score['high']:.2f}]"
    assert re.search(rf"\| trained +\| {re.escape(interval)} \|", card.text)
    assert "| initial |" in card.text


def test_a_card_states_license_base_model_data_hardware_hours_and_citation(
    runs: list[RunFolder], tiny_store: Store
) -> None:
    first, second = [ModelCard.load(run.export / "README.md") for run in runs]
    assert "No license is stated" in first.text
    assert second.data.license == "mit"
    assert second.data.base_model == "tiny/esm"
    sha256 = runs[1].encoder["sha256"]
    assert f"folder `export`, sha256 of its weights `{sha256}`" in second.text
    assert "License: mit." in second.text
    for source in tiny_store.manifest["sources"].values():
        assert source["sha256"] in second.text
    assert tiny_store.digest in second.text
    assert re.search(r"\| hardware \| 1 worker, 3 threads each: .+ \|", second.text)
    assert re.search(r"\| time \| \S+ CPU-worker-hours \|", second.text)
    assert "| weights | of step 2 |" in second.text
    assert "arXiv:2103.10334" in second.text
    # No path of this machine.
    assert str(runs[0].path.parent) not in second.content
    blocks = re.findall(r"## Configuration\n\n```yaml\n(.*?)```", second.content, re.DOTALL)
    assert yaml.safe_load(blocks[0])["encoder"]["source"] == "export"


def test_hours_are_a_lower_bound_where_earlier_starts_are_not_in_the_log(
    runs: list[RunFolder], tiny_store: Store
) -> None:
    run = runs[0]
    config = tiny_config(NAME)
    system = METHODS[NAME].build(config, tiny_store.path)
    text = run.notices.read_text()
    run.notices.write_text(text.replace('"first_step": 0', '"first_step": 1'))
    try:
        card = run_card(run, system, config, step=2, precision="fp32", metrics={})
    finally:
        run.notices.write_text(text)
    assert "| time | at least " in card["Training"]
    assert "Evaluation" not in card
    assert "model-index" not in card["metadata"]


def test_a_store_that_was_prepared_again_is_not_described_as_the_runs(
    runs: list[RunFolder], tiny_store: Store
) -> None:
    run = runs[0]
    config = tiny_config(NAME)
    system = METHODS[NAME].build(config, tiny_store.path)
    record = run.read_identity()
    assert record is not None
    write_record(run.identity, "run", record | {"data_digest": "d" * 64})
    try:
        card = run_card(run, system, config, step=2, precision="fp32", metrics={})
    finally:
        write_record(run.identity, "run", record)
    assert "so its sources are not listed" in card["Data"]
    for source in tiny_store.manifest["sources"].values():
        assert source["sha256"] not in card["Data"]


def test_a_score_without_an_interval_has_none_on_the_hub(
    runs: list[RunFolder], tiny_store: Store
) -> None:
    config = tiny_config(NAME)
    system = METHODS[NAME].build(config, tiny_store.path)
    unit = {"lrap": {"value": 0.5, "low": math.nan, "high": math.nan}, "ndcg": {"value": 0.25}}
    report = FinalReport(scores={"trained": {"val": unit}})
    card = run_card(runs[0], system, config, step=2, precision="fp32", metrics={}, report=report)
    (result,) = card["metadata"]["model-index"][0]["results"]
    assert [metric["value"] for metric in result["metrics"]] == [0.5, 0.25]
    assert all("args" not in metric for metric in result["metrics"])


def test_every_method_has_its_paper() -> None:
    assert [name for name, method in METHODS.items() if not method.citation] == []


def test_a_card_is_read_as_it_was_written() -> None:
    card = Card({"license": "mit", "tags": ["ä", "b"]}, "# A\n\n---\n\ntext\n")
    assert Card.parse(str(card)) == card
    assert Card.parse("# no header\n") == ({}, "# no header\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        Card.parse("---\na: [\n---\n\n# A\n")
    with pytest.raises(ConfigError, match="is a list, want a mapping"):
        Card.parse("---\n- a\n---\n\n# A\n")
