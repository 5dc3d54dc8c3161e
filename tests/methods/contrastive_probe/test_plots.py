import numpy as np

from raybio.evaluation.curves import means_over_steps
from raybio.evaluation.plots import plot_curves
from raybio.methods.contrastive_probe.accuracy import (
    chance_scores,
    evaluate_predictions,
    predict_names,
)
from raybio.methods.contrastive_probe.config import ProbeConfig
from raybio.methods.contrastive_probe.plots import plot_expert_scores, plot_probe
from raybio.methods.contrastive_probe.probe import ProbeResult
from raybio.methods.contrastive_probe.report import QuerySetResults, report_data
from raybio.methods.contrastive_probe.report_files import write_report
from tests.methods.contrastive_probe.small_benchmark import random_benchmark
from tests.methods.contrastive_probe.test_accuracy import embeddings, search

PNG = b"\x89PNG"


def sets():
    """Two models at two layers."""
    benchmark = random_benchmark()
    results = []
    for number, (model, layer) in enumerate([("one", 3), ("one", 12), ("two", 3), ("two", 12)]):
        predicted = predict_names(
            benchmark, *embeddings(benchmark, seed=number), ProbeConfig(), search
        )
        results.append(
            ProbeResult(model, layer, evaluate_predictions(benchmark, predicted), predicted)
        )
    return [
        QuerySetResults("full", benchmark, results, "name", chance_scores(benchmark, ProbeConfig()))
    ]


def test_a_probe_over_layers_gets_heat_maps_and_curves_a_relation_without_queries_included(
    tmp_path,
):
    files = plot_probe(report_data(sets(), {}), tmp_path)
    assert sorted(file.name for file in files) == [
        f"{what}_full_acc{k}.png" for what in ("layers", "lengths", "relations") for k in (1, 10)
    ]
    assert all(file.read_bytes().startswith(PNG) for file in files)


def test_curves_of_several_runs_and_expert_scores_are_plotted(tmp_path):
    runs = {"0.5": [[(50, 0.01), (100, 0.02)], [(50, 0.03)]], "0.3": [[(50, 0.02), (100, 0.05)]]}
    picture = plot_curves(means_over_steps(runs), tmp_path / "deep" / "steps.png", in_percent=True)
    assert picture.read_bytes().startswith(PNG)
    count = np.array([[20, 13], [30, 0], [40, 0], [20, 0], [27, 0]])
    assert (
        plot_expert_scores(count, [5, 4, 3, 2, 1], tmp_path / "scores.png")
        .read_bytes()
        .startswith(PNG)
    )


def test_a_report_is_markdown_json_a_file_a_table_and_figures(tmp_path):
    write_report(tmp_path / "report", sets(), {"metric": "euclidean"}, seed=0)
    found = {
        path.relative_to(tmp_path / "report").as_posix()
        for path in (tmp_path / "report").rglob("*.*")
    }
    wanted = {
        "report.md",
        "report.json",
        "plots/relations_full_acc1.png",
        "tables/scores_full_set.csv",
    }
    assert wanted <= found
    table = (
        (tmp_path / "report/tables/by_layer_full_set_acc_1_acc_10_micro.csv")
        .read_text()
        .splitlines()
    )
    assert table[0] == "layers,one,two"
    assert [line.split(",")[0] for line in table[1:]] == ["3", "12"]
