"""Recipes hold the published values, and the command line finds them."""

from pathlib import Path
from typing import Any

import pytest

from raybio.core.config import fields, merge, value_at
from raybio.core.errors import ConfigError
from raybio.methods import METHODS
from raybio.runtime.run.options import RunOptions, resolve_config

PUBLISHED: dict[str, dict[str, dict[str, Any]]] = {
    # McDermott et al.: section on pre-training, Table 6 and Table 7; batch and rate are the code's.
    "sppt_protein": {
        "paper_table_6": {
            "objective.lambda_spml": 0.1,
            "objective.loss": "multi_similarity",
            "schedule.max_epochs": 1,
            "input.mask_rate": 0.15,
            "input.max_length": 4096,
            "optim.peak_lr": 3e-4,
        }
    },
    "sppt_mag": {
        "paper_table_7": {
            "encoder.source": "allenai/scibert_scivocab_uncased",
            "objective.lambda_spml": 0.01,
            "objective.loss": "margin_contrastive",
            "objective.negative_margin": 10.0,
            "schedule.max_epochs": 4,
            "encoder.max_length": 512,
            "evaluation.test_graphs": 5,
            "evaluation.samples": 100,
            "evaluation.nodes_per_sample": 200,
        }
    },
    # Meng et al.: the probed checkpoint, and the command line of the code.
    "contrastive_probe": {
        "paper_table_3": {
            "schedule.max_steps": 150,
            "plan.global_batch_rows": 192,
            "optim.peak_lr": 2e-5,
            "cloze.mask_ratio": 0.5,
            "objective.temperature": 0.04,
        }
    },
    # Menad et al.: settings of training.
    "biostransformers": {
        "paper": {
            "schedule.max_epochs": 1,
            "plan.global_batch_rows": 384,
            "plan.fields": ["title", "abstract"],
            "optim.peak_lr": 2e-5,
            "optim.num_warmup_steps": 500,
            "objective.temperature": 0.05,
        }
    },
    # Zhou et al. 2023: hyperparameters of pre-training and of fine-tuning.
    "mtb_pretrain": {
        "paper_biored": {
            "schedule.max_epochs": 3,
            "plan.global_batch_rows": 16,
            "optim.peak_lr": 5e-6,
            "objective.temperature": 0.05,
            "blanks.blank_rate": 0.7,
        },
        "paper_docred": {
            "schedule.max_epochs": 10,
            "plan.global_batch_rows": 16,
            "optim.peak_lr": 5e-6,
            "objective.temperature": 0.05,
            "blanks.blank_rate": 0.7,
        },
    },
    "relation_finetune": {
        "paper_biored": {
            "schedule.max_epochs": 100,
            "plan.global_batch_rows": 32,
            "optim.peak_lr": 5e-5,
            "objective.weight_temperature": 0.2,
            "objective.logit_temperature": 0.2,
        },
        "paper_docred": {
            "schedule.max_epochs": 30,
            "plan.global_batch_rows": 32,
            "optim.peak_lr": 5e-5,
            "objective.weight_temperature": 0.01,
            "objective.logit_temperature": 0.03,
        },
    },
    # Theodoropoulos et al. 2021: tuned values.
    "relation_graphs": {
        "paper_ade": {
            "schedule.max_epochs": 20,
            "schedule.early_stopping_patience": 3,
            "optim.peak_lr": 1e-5,
            "optim.weight_decay": 1e-6,
            "graphs.num_negatives": 8,
            "objective.temperature": 0.1,
            "objective.self_loop": 0.8,
        }
    },
}
"""Method -> recipe -> setting -> published value."""


RECIPES = [(method, name) for method, entry in METHODS.items() for name in entry.recipes]


@pytest.mark.parametrize("method, name", RECIPES)
def test_a_recipe_holds_the_published_values(method: str, name: str) -> None:
    entry = METHODS[method]
    recipe = entry.recipes[name]
    config = merge(entry.config, recipe.settings)
    expected = PUBLISHED[method][name]
    assert {path: value_at(config, path) for path in expected} == expected
    assert recipe.about.endswith(".") and len(recipe.about) > 30


def test_every_table_of_published_values_has_a_recipe() -> None:
    expected = {(method, name) for method, recipes in PUBLISHED.items() for name in recipes}
    assert expected == set(RECIPES)


@pytest.mark.parametrize("method, name", RECIPES)
def test_a_recipe_says_each_value_itself(method: str, name: str) -> None:
    """A changed default of the method must not change what is published."""
    entry = METHODS[method]
    given = entry.recipes[name].settings
    for path in PUBLISHED[method][name]:
        node = given
        for part in path.split("."):
            node = node[part]
    known = {field.path for field in fields(entry.config)}
    flat = {f"{section}.{leaf}" for section, leaves in given.items() for leaf in leaves}
    assert flat <= known


def config_of(method: str, **options: Any) -> Any:
    return resolve_config(METHODS[method], RunOptions(**options), Path("runs"))[1]


def test_files_and_settings_of_the_command_line_lie_above_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("objective: {weight_temperature: 0.5}\n")
    config = config_of(
        "relation_finetune",
        recipe="paper_docred",
        config=file,
        settings=("schedule.max_steps=7",),
    )
    assert config.objective.weight_temperature == 0.5
    assert config.objective.logit_temperature == 0.03
    assert (config.schedule.max_steps, config.schedule.max_epochs) == (7, None)


def test_the_demo_is_a_recipe_of_every_method(tmp_path: Path) -> None:
    for name, entry in METHODS.items():
        assert config_of(name, recipe="demo", store=tmp_path) == entry.demo


def test_an_unknown_recipe_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="paper_docred and demo. Did you mean 'paper_biored'"):
        config_of("relation_finetune", recipe="paper_biord")
    with pytest.raises(ConfigError, match="demo is the only one"):
        config_of("finetune", recipe="paper")
