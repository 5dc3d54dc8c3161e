"""Recipes against what the documents on the papers say, read anew: no value is typed here."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from raybio.core.config import merge, value_at
from raybio.methods import METHODS
from tests.paths import SHARED_FACTS

PROBE = "00_contrastive_probe.md"
BIOS = "01_biostransformers.md"
SPPT = "02_sppt.md"
MTB = "03_mtb_mccl.md"
ADE = "04_clgs_cldr_clner.md"

REWIRED = ("contrastive_probe paper_table_3", "contrastive_probe paper_figure_4")
TITLES = ("biostransformers paper_table_1",)
PROTEINS = ("sppt_protein paper_table_6",)
ARTICLES = ("sppt_mag paper_table_7",)
CLIQUES = ("sppt_synthetic paper_cliques",)
SURFACES = ("sppt_synthetic paper_surfaces",)
CYCLES = ("sppt_synthetic paper_cycles",)
SYNTHETIC = CLIQUES + SURFACES + CYCLES
TAPE_TASKS = tuple(
    f"finetune paper_{task}"
    for task in ("remote_homology", "fluorescence", "stability", "secondary_structure")
)
TEXT_TASKS = tuple(f"finetune paper_{task}" for task in ("paper_field", "acl_arc", "scicite"))
MTB_BOTH = ("mtb_pretrain paper_biored", "mtb_pretrain paper_docred")
MCCL_BOTH = ("relation_finetune paper_biored", "relation_finetune paper_docred")
ADE_ALL = ("relation_graphs paper_ade",)

RATE = "optim.peak_lr"
DECAY = "optim.weight_decay"
BATCH = "plan.global_batch_rows"
EPOCHS = "schedule.max_epochs"
STEPS = "schedule.max_steps"
SIZES = "encoder.num_layers encoder.width encoder.num_heads encoder.ffn_width"

N = r"([\d.,]+(?:e-?\d+)?)"
"""A number."""


class Fact(NamedTuple):
    """A place of a document.

    Attributes:
        document: its file.
        pattern: the place, with a group for each number; a hash is a number.
        targets: setting, or settings, of each group; empty: none.
        recipes: recipes that have them, "METHOD RECIPE"; of several columns one for each group.
    """

    document: str
    pattern: str
    targets: tuple[str, ...]
    recipes: tuple[str, ...] | tuple[tuple[str, ...], ...]


FACTS = (
    Fact(PROBE, r"\| lr \| [^|]*\| #, AdamW, weight decay #, no", (RATE, DECAY), REWIRED),
    Fact(PROBE, r"\| steps \| # \|", (STEPS,), REWIRED[1:]),
    Fact(
        PROBE,
        r"saved every # steps; probed at # \|",
        ("schedule.checkpoint_every_steps", STEPS),
        REWIRED[:1],
    ),
    Fact(PROBE, r"\| batch \| - \| # \|", (BATCH,), REWIRED),
    Fact(PROBE, r"\| mask ratio \| [^|]*\| # \|", ("cloze.mask_ratio",), REWIRED),
    Fact(PROBE, r"\| tau \| [^|]*\| # \|", ("objective.temperature",), REWIRED),
    Fact(PROBE, r"max_length = # word-pieces for both", ("cloze.max_tokens",), REWIRED),
    Fact(
        PROBE,
        r"\| max_len query / answer \(probing\) \| # / # \|",
        ("evaluation.max_query_tokens", "evaluation.max_name_tokens"),
        REWIRED,
    ),
    Fact(
        BIOS,
        r"batch #; epochs \d; warmup # steps; lr argument # \([^\n]*weight decay #, linear decay, "
        r"grad clip #;[^\n]*evaluation every # steps",
        (
            BATCH,
            "optim.num_warmup_steps",
            RATE,
            DECAY,
            "optim.max_grad_norm",
            "schedule.evaluate_every_steps",
        ),
        TITLES,
    ),
    Fact(BIOS, r"temperature #\)", ("objective.temperature",), TITLES),
    Fact(BIOS, r"max_seq_length # tokens", ("encoder.max_length",), TITLES),
    Fact(BIOS, r"\*\*first # characters\*\*", ("text.max_characters",), TITLES),
    Fact(SPPT, r"# epoch \(proteins\), # epochs \(articles\)", (EPOCHS,), (PROTEINS, ARTICLES)),
    Fact(
        SPPT,
        r"\*\*# proteins, # articles \(SciBERT",
        ("objective.lambda_spml",),
        (PROTEINS, ARTICLES),
    ),
    Fact(SPPT, r"code default lr # \(", (RATE,), PROTEINS + ARTICLES),
    Fact(
        SPPT,
        r"proteins up to # default,[^\n]*; articles # \(first",
        ("input.max_length", "encoder.max_length"),
        (PROTEINS, ARTICLES),
    ),
    Fact(SPPT, r"position masked with p = #,", ("input.mask_rate",), PROTEINS + ARTICLES),
    Fact(
        SPPT,
        r"mu_plus = #, mu_minus = \*\*#\*\*",
        ("objective.positive_margin", "objective.negative_margin"),
        ARTICLES + SYNTHETIC,
    ),
    Fact(
        SPPT,
        r"Final articles: # trials x # samples; each = # random nodes",
        ("evaluation.test_graphs", "evaluation.samples", "evaluation.nodes_per_sample"),
        ARTICLES,
    ),
    Fact(
        SPPT,
        r"Proteins: # epochs max, early stop on validation \*\*loss\*\*, patience #,",
        (EPOCHS, "schedule.early_stopping_patience"),
        TAPE_TASKS,
    ),
    Fact(SPPT, r"RH bs# lr#;", (BATCH, RATE), TAPE_TASKS[:1]),
    Fact(SPPT, r"FL bs# #;", (BATCH, RATE), TAPE_TASKS[1:2]),
    Fact(SPPT, r"ST bs# #;", (BATCH, RATE), TAPE_TASKS[2:3]),
    Fact(SPPT, r"SS bs# #\. ", (BATCH, RATE), TAPE_TASKS[3:]),
    Fact(SPPT, r"Articles: bs #, dropout #, Adam", (BATCH, "encoder.dropout"), TEXT_TASKS),
    Fact(SPPT, r"Paper field # ep #;", (EPOCHS, RATE), TEXT_TASKS[:1]),
    Fact(SPPT, r"ACL-ARC # \(LMPT\) / \d \(SPPT\) ep #;", (EPOCHS, RATE), TEXT_TASKS[1:2]),
    Fact(SPPT, r"SciCite #/\d ep #;", (EPOCHS, RATE), TEXT_TASKS[2:]),
    Fact(
        SPPT,
        r"lambda_SPML = # vs 0; \*\*contrastive loss, margin #, lr #, AdamW",
        ("objective.lambda_spml", "objective.negative_margin", RATE),
        SYNTHETIC,
    ),
    Fact(SPPT, r"cut at # characters", ("encoder.max_length",), SYNTHETIC),
    Fact(SPPT, r"equalised counts; # nodes drawn", (BATCH,), CLIQUES),
    Fact(
        SPPT,
        r"\| Cliques \|[^|]*\| # layers, hidden #, # heads, FFN # \| # / all",
        (*SIZES.split(), EPOCHS),
        CLIQUES,
    ),
    Fact(
        SPPT,
        r"\| Manifold \|[^|]*\| # layers, hidden #, # heads, FFN # \| # / # /",
        (*SIZES.split(), EPOCHS, BATCH),
        SURFACES,
    ),
    Fact(
        SPPT,
        r"\| Mechanistic \|[^|]*\| # layers, hidden #, # heads, FFN # \| # / all",
        (*SIZES.split(), EPOCHS),
        CYCLES,
    ),
    Fact(
        MTB,
        r"threshold \(\*\*#\*\* BioRED, \*\*#\*\* DocRED\)",
        ("pairs.min_documents",),
        ((MTB_BOTH[0],), (MTB_BOTH[1],)),
    ),
    Fact(MTB, r"top K = #\*\* by PMI", ("pairs.num_pairs",), MTB_BOTH),
    Fact(MTB, r"masked with probability \*\*#\*\*", ("blanks.blank_rate",), MTB_BOTH),
    Fact(
        MTB,
        r"Batch #, lr #, AdamW, weight decay #, epochs",
        (BATCH, RATE, DECAY),
        MTB_BOTH,
    ),
    Fact(
        MTB,
        r"epochs # \(BioRED corpus\) / # \(DocRED\)",
        (EPOCHS,),
        ((MTB_BOTH[0],), (MTB_BOTH[1],)),
    ),
    Fact(MTB, r"\(DocRED\), tau #\. ", ("objective.temperature",), MTB_BOTH),
    Fact(MTB, r"linear decay, clip # ", ("optim.max_grad_norm",), MTB_BOTH),
    Fact(
        MTB,
        r"\| lr / batch / epochs \| # / # docs / # \|",
        (RATE, BATCH, EPOCHS),
        MCCL_BOTH[:1],
    ),
    Fact(
        MTB,
        r"\| lr / batch / epochs \| [^|]*\| # / # docs / # \|",
        (RATE, BATCH, EPOCHS),
        MCCL_BOTH[1:],
    ),
    Fact(
        MTB,
        r"\| tau1, tau2 \| #, # \|",
        ("objective.weight_temperature", "objective.logit_temperature"),
        MCCL_BOTH[:1],
    ),
    Fact(
        MTB,
        r"\| tau1, tau2 \| [^|]*\| #, # \|",
        ("objective.weight_temperature", "objective.logit_temperature"),
        MCCL_BOTH[1:],
    ),
    Fact(MTB, r"AdamW wd #; 5 seeds", (DECAY,), MCCL_BOTH),
    Fact(
        ADE,
        r"Adam, lr #, weight decay # \(GCN included\), batch \d+ sentences, <= # epochs, early "
        r"stop: [^\n]* for # epochs;",
        (RATE, DECAY, EPOCHS, "schedule.early_stopping_patience"),
        ADE_ALL,
    ),
    Fact(
        ADE,
        r"lam # \(.7[^\n]*; tau # \([^\n]*; negatives # \(",
        ("objective.self_loop", "objective.temperature", "graphs.num_negatives"),
        ADE_ALL,
    ),
    Fact(ADE, r"Frozen: embeddings \+ first # of 12", ("encoder.num_frozen_layers",), ADE_ALL),
    Fact(ADE, r"\|K_n\| <= # ", ("samples.num_samples",), ADE_ALL),
    Fact(ADE, r"positives: up to \*\*#\*\* random", ("samples.num_positives",), ADE_ALL),
    Fact(ADE, r"k = #, brute force", ("evaluation.num_pair_neighbors",), ADE_ALL),
    Fact(ADE, r"5 tags; k = #, Euclidean", ("evaluation.num_tag_neighbors",), ADE_ALL),
)

needs_facts = pytest.mark.skipif(
    not SHARED_FACTS.is_dir(), reason=f"the documents on the papers are not at {SHARED_FACTS}"
)


def numbers_of(document: str, pattern: str) -> list[float]:
    """Return the numbers at a place that the document has once."""
    text = (SHARED_FACTS / document).read_text(encoding="utf-8")
    places = re.findall(pattern.replace("#", N), text)
    assert len(places) == 1, f"{document}: {len(places)} places of {pattern}"
    groups = places[0] if isinstance(places[0], tuple) else (places[0],)
    return [float(group.replace(",", "")) for group in groups]


def setting(recipe: str, path: str) -> Any:
    method, name = recipe.split()
    entry = METHODS[method]
    value = value_at(merge(entry.config, entry.recipes[name].settings), path)
    return value[0] if isinstance(value, list | tuple) else value


@needs_facts
@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: f"{fact.document[:2]} {fact.pattern}")
def test_a_recipe_has_the_value_of_the_document(fact: Fact) -> None:
    numbers = numbers_of(fact.document, fact.pattern)
    by_column = isinstance(fact.recipes[0], tuple)
    targets = fact.targets * (len(numbers) if by_column and len(fact.targets) == 1 else 1)
    assert len(targets) == len(numbers)
    for index, (path, number) in enumerate(zip(targets, numbers, strict=True)):
        recipes = fact.recipes[index] if by_column else fact.recipes
        for recipe in recipes:
            assert setting(str(recipe), path) == pytest.approx(number), (recipe, path)


@needs_facts
def test_numbers_of_neighbors_and_steps_follow_from_the_documents() -> None:
    text = (SHARED_FACTS / MTB).read_text(encoding="utf-8")
    (listed,) = re.findall(r"\| k \(kNN\) \| from \{([\d,]+)\} on dev", text)
    for recipe in MCCL_BOTH:
        method, name = recipe.split()
        found: Mapping[str, Any] = METHODS[method].recipes[name].settings["evaluation"]
        assert found["num_neighbors"] == [int(number) for number in listed.split(",")]
    (warmup,) = numbers_of(MTB, "ATLOP: #% linear warm-up")
    for recipe in MTB_BOTH:
        assert setting(recipe, "optim.warmup_ratio") == pytest.approx(warmup / 100)
    (warmup,) = numbers_of(SPPT, r"linear warm-up \(#% default\)")
    for recipe in TEXT_TASKS:
        assert setting(recipe, "optim.warmup_ratio") == pytest.approx(warmup / 100)
    (millions,) = numbers_of(BIOS, r"\| 2 \(final[^|]*\| # M")
    for recipe in TITLES:
        assert setting(recipe, STEPS) == int(millions * 1e6 / setting(recipe, BATCH))


def test_every_published_recipe_is_compared_with_a_document() -> None:
    compared = set()
    for fact in FACTS:
        for recipes in fact.recipes:
            compared |= {recipes} if isinstance(recipes, str) else set(recipes)
    published = {
        f"{method} {name}"
        for method, entry in METHODS.items()
        for name in entry.recipes
        if name.startswith("paper_")
    }
    assert compared == published
