"""Recipes hold the published values, and the command line finds them."""

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from raybio.core.config import load, merge, override_all, value_at
from raybio.core.errors import ConfigError
from raybio.core.fields import fields
from raybio.core.recipes import recipe_named
from raybio.methods import METHODS
from raybio.methods.biostransformers.prepare import prepare_pairs
from raybio.runtime.run.options import RunOptions, resolve_config
from raybio.training.loop import fit
from tests.methods.conformance_cases import CASES
from tests.paths import ROOT
from tests.test_docs import commands

BIOMED_BERT = "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract"

SMALL_ENCODER = {
    "encoder.num_layers": 2,
    "encoder.width": 10,
    "encoder.num_heads": 2,
    "encoder.ffn_width": 8,
    "encoder.vocabulary": "characters",
    "encoder.dropout": 0.0,
}
"""McDermott et al., synthetic experiments: cliques and cycles."""

SYNTHETIC = {
    "objective.lambda_spml": 0.1,
    "objective.loss": "margin_contrastive",
    "objective.negative_margin": 10.0,
    "optim.peak_lr": 3e-4,
    "encoder.max_length": 350,
}
"""McDermott et al., synthetic experiments: all graphs."""

OF_PROTEINS = {
    "schedule.max_epochs": 200,
    "schedule.early_stopping_metric": "val/log_likelihood",
    "schedule.early_stopping_patience": 25,
    "optim.schedule": "constant",
}
"""McDermott et al., fine-tuning on TAPE's tasks."""

OF_TEXTS = {
    "plan.global_batch_rows": 32,
    "encoder.dropout": 0.1,
    "encoder.head": "linear",
    "optim.schedule": "linear",
    "optim.warmup_ratio": 0.2,
}
"""McDermott et al., fine-tuning on SciBERT's tasks."""

REWIRED = {
    "encoder.source": f"{BIOMED_BERT}-fulltext",
    "plan.global_batch_rows": 192,
    "optim.peak_lr": 2e-5,
    "optim.weight_decay": 0.01,
    "cloze.mask_ratio": 0.5,
    "cloze.tail": "random",
    "evaluation.candidates": "all",
    "plan.num_sentences": None,
    "cloze.max_tokens": 48,
    "objective.temperature": 0.04,
    "evaluation.metric": "euclidean",
    "evaluation.max_query_tokens": 50,
    "evaluation.max_name_tokens": 25,
    "schedule.checkpoint_every_steps": 50,
}
"""Meng et al., Table 8 and the command line of the code."""

MTB = {
    "plan.global_batch_rows": 16,
    "pairs.num_pairs": 5000,
    "optim.peak_lr": 5e-6,
    "optim.weight_decay": 0.01,
    "objective.temperature": 0.05,
    "blanks.blank_rate": 0.7,
    "objective.relation_weight": 1.0,
    "objective.self_weight": 1.0,
    "objective.mlm_weight": 1.0,
    "objective.type_filter": True,
}
"""Zhou et al. 2023, hyperparameters of pre-training and Appendix A."""

MCCL = {
    "objective.kind": "mccl",
    "objective.num_proxies": 1,
    "plan.global_batch_rows": 32,
    "optim.peak_lr": 5e-5,
    "optim.weight_decay": 0.01,
    "evaluation.num_neighbors": [1, 3, 5, 10, 20],
}
"""Zhou et al. 2023, hyperparameters of fine-tuning."""

PUBLISHED: dict[str, dict[str, dict[str, Any]]] = {
    # McDermott et al.: pre-training, Table 6; rate and length are the code's.
    "sppt_protein": {
        "paper_table_6": {
            "encoder.source": "./tape",
            "objective.lambda_spml": 0.1,
            "objective.loss": "multi_similarity",
            "schedule.max_epochs": 1,
            "input.mask_rate": 0.15,
            "input.mask_style": "always",
            "input.crop": "ends",
            "input.max_length": 4096,
            "optim.schedule": "constant",
            "optim.peak_lr": 3e-4,
        }
    },
    # McDermott et al.: pre-training, Table 7.
    "sppt_mag": {
        "paper_table_7": {
            "encoder.source": "allenai/scibert_scivocab_uncased",
            "objective.lambda_spml": 0.01,
            "objective.loss": "margin_contrastive",
            "objective.negative_margin": 10.0,
            "schedule.max_epochs": 4,
            "encoder.max_length": 512,
            "input.mask_rate": 0.15,
            "input.mask_style": "always",
            "optim.peak_lr": 3e-4,
            "optim.schedule": "constant",
            "evaluation.test_graphs": 5,
            "evaluation.samples": 100,
            "evaluation.nodes_per_sample": 200,
        }
    },
    # McDermott et al., Table 1 and Figure 3.
    "sppt_synthetic": {
        "paper_cliques": SYNTHETIC
        | SMALL_ENCODER
        | {"schedule.max_epochs": 8000, "plan.global_batch_rows": 50},
        "paper_cycles": SYNTHETIC
        | SMALL_ENCODER
        | {"schedule.max_epochs": 5000, "graph.sentences": "strongest"},
        "paper_surfaces": SYNTHETIC
        | {
            "encoder.num_layers": 3,
            "encoder.width": 256,
            "encoder.num_heads": 4,
            "encoder.ffn_width": 256,
            "schedule.max_epochs": 1500,
            "plan.global_batch_rows": 16,
        },
    },
    # McDermott et al., Tables 2 and 3.
    "finetune": {
        "paper_remote_homology": OF_PROTEINS
        | {"plan.global_batch_rows": 16, "optim.peak_lr": 1e-5, "encoder.head": "mlp"},
        "paper_fluorescence": OF_PROTEINS
        | {"plan.global_batch_rows": 128, "optim.peak_lr": 5e-5, "encoder.head": "mlp"},
        "paper_stability": OF_PROTEINS
        | {"plan.global_batch_rows": 512, "optim.peak_lr": 1e-4, "encoder.head": "mlp"},
        "paper_secondary_structure": OF_PROTEINS
        | {"plan.global_batch_rows": 16, "optim.peak_lr": 1e-5, "encoder.head": "conv"},
        "paper_paper_field": OF_TEXTS | {"schedule.max_epochs": 2, "optim.peak_lr": 5e-5},
        "paper_acl_arc": OF_TEXTS | {"schedule.max_epochs": 4, "optim.peak_lr": 5e-5},
        "paper_scicite": OF_TEXTS | {"schedule.max_epochs": 3, "optim.peak_lr": 1e-5},
    },
    "contrastive_probe": {
        "paper_table_3": REWIRED | {"schedule.max_steps": 150},
        "paper_figure_4": REWIRED | {"schedule.max_steps": 500},
    },
    # Menad et al., training of the final models; the code's arguments.
    "biostransformers": {
        "paper_table_1": {
            "encoder.source": "sentence-transformers/all-MiniLM-L6-v2",
            "encoder.max_length": 128,
            "text.max_characters": 500,
            "schedule.max_steps": 6_750_000 // 384,
            "schedule.evaluate_every_steps": 1000,
            "plan.global_batch_rows": 384,
            "plan.fields": ["title", "abstract"],
            "plan.conflicts": "drop",
            "optim.peak_lr": 2e-5,
            "optim.num_warmup_steps": 500,
            "optim.weight_decay": 0.01,
            "objective.temperature": 1 / 20,
            "objective.symmetric": False,
            "evaluation.num_articles_at_the_end": 18_557,
        }
    },
    # Zhou et al. 2023, Tables 1 to 5.
    "mtb_pretrain": {
        "paper_biored": MTB
        | {
            "encoder.source": BIOMED_BERT,
            "schedule.max_epochs": 3,
            "pairs.min_documents": 16,
        },
        "paper_docred": MTB
        | {
            "encoder.source": "bert-base-cased",
            "schedule.max_epochs": 10,
            "pairs.min_documents": 3,
        },
    },
    "relation_finetune": {
        "paper_biored": MCCL
        | {
            "encoder.source": BIOMED_BERT,
            "schedule.max_epochs": 100,
            "objective.weight_temperature": 0.2,
            "objective.logit_temperature": 0.2,
        },
        "paper_docred": MCCL
        | {
            "encoder.source": "bert-base-cased",
            "schedule.max_epochs": 30,
            "objective.weight_temperature": 0.01,
            "objective.logit_temperature": 0.03,
        },
    },
    # Theodoropoulos et al. 2021, tuned values of Tables 2 to 4.
    "relation_graphs": {
        "paper_ade": {
            "encoder.source": "helboukkouri/character-bert-medical",
            "encoder.num_frozen_layers": 6,
            "schedule.max_epochs": 20,
            "schedule.early_stopping_patience": 3,
            "optim.peak_lr": 1e-5,
            "optim.weight_decay": 1e-6,
            "graphs.num_negatives": 8,
            "samples.num_samples": 80,
            "samples.num_positives": 30,
            "objective.temperature": 0.1,
            "objective.self_loop": 0.8,
            "objective.pairing": "diagonal",
            "objective.text_pooling": "mean",
            "objective.graph_pooling": "mean",
            "evaluation.candidates": "all",
            "evaluation.num_pair_neighbors": [5],
            "evaluation.num_tag_neighbors": [7],
            "evaluation.probe_positive_weights": [1.0, 2.0, 4.0, 8.0, 16.0],
        }
    },
}
"""Method -> recipe -> setting -> published value."""

TINY = {
    "encoder.source": "scratch",
    "encoder.num_layers": 2,
    "encoder.width": 16,
    "encoder.num_heads": 2,
    "encoder.ffn_width": 16,
    "plan.global_batch_rows": 8,
}
"""A tiny encoder from scratch, and a batch that fits tiny stores."""

SMALL = "small"

RECIPES = [
    (method, name)
    for method, entry in METHODS.items()
    for name in entry.recipes
    if name.startswith("paper_")
]


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


def test_every_job_has_a_small_recipe() -> None:
    assert len(METHODS) == 9
    for method, entry in METHODS.items():
        others = {name for name in entry.recipes if not name.startswith("paper_")}
        assert others == {SMALL}, method
        recipe = entry.recipes[SMALL]
        assert recipe.about.startswith("Minutes ") and recipe.about.endswith(".")
        # Epochs depend on the store, so they do not bound the time.
        config = merge(entry.config, recipe.settings)
        assert config.schedule.max_steps <= 500 and not config.schedule.has_epochs


def test_the_small_recipe_of_articles_takes_those_without_abstracts(tmp_path: Path) -> None:
    """As the authors' validation pairs, which it names."""
    entry = METHODS["biostransformers"]
    lines = [f'{pmid},"Title {pmid}",Asthma,Rats\n' for pmid in range(400)]
    (tmp_path / "released.csv").write_text("".join(lines))
    store = prepare_pairs(tmp_path / "store", [tmp_path / "released.csv"])
    config = merge(entry.config, entry.recipes[SMALL].settings)
    entry.check(override_all(config, TINY | {"plan.conflicts": "mask"}), store)


@pytest.mark.parametrize("method", METHODS)
def test_a_small_recipe_trains(method: str, request: pytest.FixtureRequest) -> None:
    """On the method's tiny store, with a tiny encoder in place of a published one."""
    entry = METHODS[method]
    store = request.getfixturevalue(CASES[method].store)
    config = merge(entry.config, entry.recipes[SMALL].settings)
    more = dict(TINY)
    if config.schedule.best_metric is None:
        more["schedule.evaluate_every_steps"] = 0
    for path in ("encoder.num_layers_kept", "encoder.num_frozen_layers"):
        if path in {field.path for field in fields(entry.config)}:
            more[path] = None if path.endswith("kept") else 0
    # The tiny synthetic stores have fewer sentences than a paper's graph.
    if method == "sppt_synthetic":
        more["graph.num_nodes"] = 40
    config = override_all(config, more | {"schedule.max_steps": 2, "precision": "fp32"})
    entry.check(config, store)
    system = entry.build(config, store.path)
    before = {name: tensor.clone() for name, tensor in system.model.state_dict().items()}
    reports = list(fit(system, config))
    assert reports[-1].step == 2
    assert all(math.isfinite(value) for value in reports[-1].metrics.values())
    after = system.model.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_the_guides_name_recipes_that_exist_and_settings_that_fit_them() -> None:
    """Every table and figure that is trained is made by a recipe."""
    found = {}
    for page in (ROOT / "docs" / "methods").glob("*.md"):
        for words in commands(page):
            if words[0] != "train":
                continue
            method = words[1]
            options = list(pairwise(words))
            names = [value for option, value in options if option == "--recipe"]
            if not names:
                continue
            settings = [value for option, value in options if option == "--set"]
            for option, value in options:
                if option == "--compare" and not value.startswith("encoder.source="):
                    setting, _, values = value.partition("=")
                    settings.append(f"{setting}={values.split(',')[0]}")
            config_of(method, recipe=names[0], settings=tuple(settings))
            found.setdefault(method, set()).add(names[0])
    assert found.keys() == METHODS.keys()
    implied = {"finetune", "sppt_synthetic"}  # the task or graph of the command chooses
    for method, names in PUBLISHED.items():
        assert method in implied or names.keys() <= found[method]


def config_of(method: str, **options: Any) -> Any:
    return resolve_config(METHODS[method], RunOptions(**options), Path("runs"))[1]


def test_the_table_of_encoders_names_the_source_of_each_recipe() -> None:
    page = (ROOT / "docs" / "encoders.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*) \| `raybio train (\S+) .*--recipe (\S+?)`", page, re.MULTILINE)
    assert len(rows) == 4  # those that take the encoder of their recipe
    for row, method, recipe in rows:
        source = METHODS[method].recipes[recipe].settings["encoder"]["source"]
        assert f"`{source}`" in row


NOT_OF_TRAINING = re.compile(
    r"precision|memory\..*|evaluation\..*|schedule\.(max_steps|.*_every_.*)"
    r"|encoder\.source|graph\.kind"
)


def test_the_page_of_results_names_each_setting_that_differs_from_the_recipe() -> None:
    page = (ROOT / "docs" / "results" / "README.md").read_text()
    rows = re.findall(r"^\| \[`(\w+)`\]\(configs/\S+\) \| `(\w+) (\w+)` \| (.*) \|$", page, re.M)
    assert len(rows) == 8
    for file, method, recipe, cell in rows:
        path = ROOT / "docs" / "results" / "configs" / f"{file}.yaml"
        entry = METHODS[method]
        here = load(entry.config, path, entry.config())
        paper = merge(entry.config, entry.recipes[recipe].settings, entry.config())
        differing = {}
        for name in (field.path for field in fields(entry.config)):
            values = value_at(here, name), value_at(paper, name)
            if values[0] != values[1] and not NOT_OF_TRAINING.fullmatch(name):
                differing[name] = tuple(map(written, values))
        named = {
            name: (of_file, of_recipe)
            for name, of_file, of_recipe in re.findall(r"`([\w.]+)` (\S+) \((\S+)\)", cell)
        }
        assert named == differing, file


def written(value: object) -> str:
    """Return a value of a setting as the page writes it."""
    if value is None:
        return "unset"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if value == 0 or value >= 0.01:
        return f"{value:,g}"
    return re.sub(r"e-0", "e-", f"{value:.0e}")


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
    with pytest.raises(
        ConfigError, match="paper_docred, small and demo. Did you mean 'paper_biored'"
    ):
        config_of("relation_finetune", recipe="paper_biord")
    with pytest.raises(ConfigError, match="demo is the only one"):
        recipe_named("paper", {})
