"""Plots of runs and scores."""

from pathlib import Path

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.image import imread

from raybio.evaluation.figures import (
    GREY,
    background_last,
    labeled_scatter,
    new_figure,
    style_of,
)
from raybio.evaluation.plots import plot_comparison, plot_embedding_map, plot_table
from raybio.evaluation.run_plots import parts_over_steps, plot_run

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


def test_a_map_of_more_groups_than_colors_is_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = plot_embedding_map(
        rng.normal(size=(200, 2)), [str(n % 40) for n in range(200)], tmp_path / "map.png"
    )
    assert path.read_bytes().startswith(PNG)


def test_points_of_no_group_are_grey_and_last_in_the_legend() -> None:
    axes = new_figure(4, 4).subplots()
    position_S2 = np.arange(12.0).reshape(6, 2)
    group_S = np.array([0, 1, -1, 1, 2, 1])
    labeled_scatter(axes, position_S2, group_S, ["binds", "treats"], background_label="none")
    background, *groups = axes.collections
    np.testing.assert_array_equal(background.get_offsets(), position_S2[[2, 4]])
    np.testing.assert_array_equal(groups[1].get_offsets(), position_S2[[1, 3, 5]])
    assert background.get_facecolor().tolist() == [list(to_rgba(GREY))]
    handles, labels = background_last(axes)
    assert labels == ["binds (1)", "treats (3)", "none (2)"]
    assert handles[-1] is background


def test_the_first_64_styles_differ() -> None:
    assert len({style_of(number) for number in range(64)}) == 64


def test_a_table_as_a_picture(tmp_path: Path) -> None:
    header, rows = ["model", "MRR"], [["random", "0.01"], ["this run", "0.12"]]
    assert (
        plot_table(header, rows, tmp_path / "table.png", title="links").read_bytes().startswith(PNG)
    )


def test_the_path_of_a_model_leaves_room_for_its_scores(tmp_path: Path) -> None:
    name = "/models/of/somebody/" + 30 * "folders/" + "runs/first/export"
    header = ["model", "LRAP", "nDCG", "AP", "MRR"]
    rows = [["chance", *4 * ["1.0"]], [name, *4 * ["2.00 [1.00, 3.00]"]]]
    # Matplotlib warns where nothing is left of the axes, and warnings are errors.
    assert plot_table(header, rows, tmp_path / "table.png").read_bytes().startswith(PNG)
    scores = {"val": {"lrap": {"value": 0.5}}}
    path = tmp_path / "scores.png"
    plot_comparison({name: scores}, {"val": "held-out"}, {"lrap": "LRAP"}, path)
    assert path.read_bytes().startswith(PNG)


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
