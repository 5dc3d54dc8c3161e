from pathlib import Path

import numpy as np
from matplotlib.image import imread

from raybio.evaluation.plots import parts_over_steps, plot_embedding_map, plot_run, plot_table

PNG = b"\x89PNG"


def test_a_run_gets_its_loss_curves_and_evaluations(tmp_path: Path) -> None:
    reports = [
        {
            "step": step,
            "metrics": {
                "loss": 1 / step,
                "mlm_loss": 2 / step,
                "val/link_mrr": 0.1,
                "train/link_mrr": 0.2,
            },
        }
        for step in range(1, 9)
    ]
    files = plot_run(reports, tmp_path / "plots")
    assert [file.name for file in files] == ["losses.png", "evaluation.png"]
    assert all(file.read_bytes().startswith(PNG) for file in files)


def test_a_run_without_reports_gets_no_plots(tmp_path: Path) -> None:
    assert plot_run([], tmp_path) == []


def test_a_map_of_more_groups_than_colours_is_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = plot_embedding_map(
        rng.normal(size=(200, 2)), [str(n % 40) for n in range(200)], tmp_path / "map.png"
    )
    assert path.read_bytes().startswith(PNG)


def test_a_table_as_a_picture(tmp_path: Path) -> None:
    header, rows = ["model", "MRR"], [["random", "0.01"], ["this run", "0.12"]]
    assert (
        plot_table(header, rows, tmp_path / "table.png", title="links").read_bytes().startswith(PNG)
    )


def test_a_metric_of_parts_is_a_heat_map_over_steps_and_no_panel(tmp_path: Path) -> None:
    reports = [
        {"step": 0, "metrics": {"loss": 1.0, "val/acc_at_10": 0.1, "val/acc_at_10/may_treat": 0.2}},
        {
            "step": 50,
            "metrics": {
                "val/acc_at_10": 0.2,
                "val/acc_at_10/may_treat": 0.3,
                "val/acc_at_10/may_prevent": 1,
            },
        },
    ]
    by_part = {"may_treat": {0: 0.2, 50: 0.3}, "may_prevent": {50: 1}}
    assert parts_over_steps(reports) == {"val/acc_at_10": by_part}
    files = plot_run(reports, tmp_path)
    assert [file.name for file in files] == ["losses.png", "evaluation.png", "val-acc_at_10.png"]
    panels, heat_map = imread(files[1]), imread(files[2])
    plot_run(
        [{**one, "metrics": {**one["metrics"], "val/acc_at_10/more": 0.5}} for one in reports],
        tmp_path,
    )
    np.testing.assert_array_equal(imread(files[1]), panels)
    assert imread(files[2]).shape[0] > heat_map.shape[0]
