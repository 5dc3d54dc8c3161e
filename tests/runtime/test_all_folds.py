"""A cross-validation as a sweep."""

from pathlib import Path

import pytest

from raybio.errors import ConfigError
from raybio.runtime import all_folds
from raybio.runtime.all_folds import fold_space, models_of, train_and_show
from raybio.runtime.launch import Arguments
from raybio.runtime.run_folder import RunFolder
from raybio.systems import SYSTEMS
from tests.systems.conformance_cases import tiny_config


def config_of(**settings):
    return tiny_config("relation_graphs", **{"model": "cldr", "schedule.evaluate_every_steps": 3} | settings)


@pytest.mark.parametrize(
    "model, more, expected",
    [
        ("cldr", [], ("cldr", "clner")),
        ("joint", [], ("joint",)),
        ("clner", [], ("clner",)),
        ("cldr", ["model=clgs"], ("cldr", "clgs", "clner")),
        ("cldr", ["model=clgs, joint,cldr"], ("cldr", "clgs", "joint", "clner")),
    ],
)
def test_a_model_that_knows_tags_is_always_there(model, more, expected):
    assert models_of(config_of(model=model), more) == expected


@pytest.mark.parametrize("more, told", [("seed=1,2", "want model= alone"), ("model=clmr", "clmr")])
def test_other_comparisons_are_refused(more, told):
    with pytest.raises(ConfigError, match=told):
        models_of(config_of(), [more])


def test_every_model_is_trained_on_every_fold_to_the_end():
    space = fold_space(config_of(), ("cldr", "clner"), 3)
    expected = [{"data.fold": fold, "model": model} for fold in (1, 2, 3) for model in ("cldr", "clner")]
    assert space.grid() == expected
    assert (space.scheduler.kind, space.budget.max_steps, space.budget.grace_steps) == ("none", 6, 3)
    assert space.metric in ("val/log_likelihood",)


def test_without_evaluations_no_step_can_be_chosen():
    with pytest.raises(ConfigError, match="evaluate_every_steps above 0"):
        fold_space(config_of(**{"schedule.evaluate_every_steps": 0}), ("joint",), 3)


@pytest.mark.parametrize(
    "given, told",
    [
        ({"seeds": 3}, "leave --seeds and --workers out"),
        ({"workers": 2}, "leave --seeds and --workers out"),
        ({"runs": Path("elsewhere")}, "RAYBIO_SWEEPS changes that"),
        ({"settings": ("data.fold=3",)}, "trains every fold, and data.fold names one"),
    ],
)
def test_what_means_nothing_to_folds_is_refused_at_once(given, told):
    with pytest.raises(ConfigError, match=told):
        train_and_show("relation_graphs", Arguments(**given))


def test_systems_without_folds_do_not_offer_them():
    from raybio.config import fields
    from raybio.runtime.launch import FOLD

    assert [name for name, entry in SYSTEMS.items() if FOLD in {one.path for one in fields(entry.config)}] == [
        "relation_graphs"
    ]


@pytest.mark.parametrize(
    "models, expected",
    [
        (("cldr", "joint", "clner"), {"untuned": "cldr+clner", "cldr + clner": "cldr+clner", "joint": "joint+joint"}),
        (("clner",), {"untuned": "clner+clner", "clner": "clner+clner"}),
        (("clner", "clgs"), {"untuned": "clgs+clner", "clgs + clner": "clgs+clner"}),
    ],
)
def test_each_row_has_the_entities_of_its_own_model_and_is_judged_again_after_training(
    tmp_path, monkeypatch, models, expected
):
    exports = {(model, fold): tmp_path / f"{model}-{fold}" for model in models for fold in (1, 2)}
    for (model, fold), export in exports.items():
        export.mkdir()
        (export / "model.safetensors").write_text(f"{model} {fold}")
    judged = []

    def scores_of(relations, entities, store, *, is_untuned, has_graphs):
        pair = f"{relations.name[:-2]}+{entities.name[:-2]}"
        assert has_graphs == (not is_untuned and not pair.startswith("clner"))
        judged.append((pair, relations.name[-1]))
        return {"pair": pair}

    monkeypatch.setattr(all_folds, "_scores_of", scores_of)
    folder = RunFolder(tmp_path, "folds")
    folder.path.mkdir()
    for _ in range(2):
        scores = all_folds._judged(folder, exports, models, tmp_path, 2)
        assert {row: {one["pair"] for one in by_fold.values()} for row, by_fold in scores.items()} == {
            row: {pair} for row, pair in expected.items()
        }
    assert len(judged) == 2 * len(expected)  # the second time they are read
    (exports[models[0], 2] / "model.safetensors").write_text("trained to the end")
    all_folds._judged(folder, exports, models, tmp_path, 2)
    assert {fold for _, fold in judged[2 * len(expected) :]} == {"2"}
