"""Recipes against what the documents on the papers say, read anew.

No value is typed here but the addresses of encoders: the documents have their names.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from raybio.core.config import merge, override_all, value_at
from raybio.methods import METHODS
from raybio.methods.relation_graphs.annotations.folds import read_fold
from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.relation_graphs.system import steps_per_epoch
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

SOURCE = "encoder.source"
RATE = "optim.peak_lr"
DECAY = "optim.weight_decay"
BATCH = "plan.global_batch_rows"
EPOCHS = "schedule.max_epochs"
STEPS = "schedule.max_steps"
SIZES = "encoder.num_layers encoder.width encoder.num_heads encoder.ffn_width"

DECISIVE = {
    SOURCE,
    BATCH,
    EPOCHS,
    STEPS,
    "objective.temperature",
    "objective.weight_temperature",
    "objective.logit_temperature",
    "objective.negative_margin",
    "pairs.min_documents",
}
"""Checkpoint, batch, length, temperatures and thresholds: compared in every recipe that has them."""

N = r"([\d.,]+(?:e-?\d+)?)"
"""A number."""


class Fact(NamedTuple):
    """A place of a document.

    Attributes:
        document: its file.
        pattern: the place, with a group for each number or name; a hash is a number.
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

ADDRESS_BY_NAME = {
    "PubMedBERT-abstract-fulltext": "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract-fulltext",
    "PubMedBERT-base": "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract",
    "BERT-base": "bert-base-cased",
    "SciBERT": "allenai/scibert_scivocab_uncased",
    "TAPE": "./tape",
    "medical CharacterBERT": "helboukkouri/character-bert-medical",
    "sentence-transformers/all-MiniLM-L6-v2": "sentence-transformers/all-MiniLM-L6-v2",
}
"""Name of a model in the documents -> where it is."""

CHECKPOINTS = (
    Fact(PROBE, r"\| models \| - \| (PubMedBERT[\w-]*), ", (SOURCE,), REWIRED),
    Fact(BIOS, r"\*\*BioS-MiniLM\*\*: start from `(\S+)`", (SOURCE,), TITLES),
    Fact(
        SPPT,
        r"start from (\w+) \(proteins\), (\w+) or CS-RoBERTa \(articles\)",
        (SOURCE,),
        (PROTEINS, ARTICLES),
    ),
    Fact(
        MTB,
        r"\| BioRED \| \d[^|]*\|[^|]*\| (\S+) \|[^\n]*\n\| Re-DocRED \| \d[^|]*\|[^|]*\| (\S+) \|",
        (SOURCE,),
        ((MTB_BOTH[0], MCCL_BOTH[0]), (MTB_BOTH[1], MCCL_BOTH[1])),
    ),
    Fact(ADE, r"Needs the released (\w+ CharacterBERT) weights", (SOURCE,), ADE_ALL),
)

COMPARED_BY_A_TEST_OF_ITS_OWN = {
    ("biostransformers paper_table_1", STEPS),  # of the number of pairs and epochs
    ("relation_graphs paper_ade", BATCH),  # by model
    ("sppt_synthetic paper_cycles", BATCH),  # all nodes, of which a draw has more or fewer
    *((recipe, SOURCE) for recipe in SYNTHETIC),  # sizes instead of a checkpoint
}

needs_facts = pytest.mark.skipif(
    not SHARED_FACTS.is_dir(), reason=f"the documents on the papers are not at {SHARED_FACTS}"
)


def texts_of(document: str, pattern: str) -> tuple[str, ...]:
    """Return the groups of a place that the document has once."""
    text = (SHARED_FACTS / document).read_text(encoding="utf-8")
    places = list(re.finditer(pattern.replace("#", N), text))
    assert len(places) == 1, f"{document}: {len(places)} places of {pattern}"
    return places[0].groups()


def numbers_of(document: str, pattern: str) -> list[float]:
    """Return the numbers at a place that the document has once."""
    return [float(group.replace(",", "")) for group in texts_of(document, pattern)]


def compared(fact: Fact) -> Iterator[tuple[int, str, str]]:
    """Yield the number of a group, and a recipe and a setting that have its value."""
    by_column = isinstance(fact.recipes[0], tuple)
    targets = fact.targets
    if by_column and len(targets) == 1:
        targets *= len(fact.recipes)
    for index, path in enumerate(targets):
        for recipe in fact.recipes[index] if by_column else fact.recipes:
            yield index, str(recipe), path


def setting(recipe: str, path: str) -> Any:
    method, name = recipe.split()
    entry = METHODS[method]
    value = value_at(merge(entry.config, entry.recipes[name].settings), path)
    return value[0] if isinstance(value, list | tuple) else value


@needs_facts
@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: f"{fact.document[:2]} {fact.pattern}")
def test_a_recipe_has_the_value_of_the_document(fact: Fact) -> None:
    numbers = numbers_of(fact.document, fact.pattern)
    assert {index for index, _, _ in compared(fact)} == set(range(len(numbers)))
    for index, recipe, path in compared(fact):
        assert setting(recipe, path) == pytest.approx(numbers[index]), (recipe, path)


@needs_facts
@pytest.mark.parametrize("fact", CHECKPOINTS, ids=lambda fact: fact.document[:2])
def test_a_recipe_starts_from_the_checkpoint_of_the_document(fact: Fact) -> None:
    names = texts_of(fact.document, fact.pattern)
    assert {index for index, _, _ in compared(fact)} == set(range(len(names)))
    for index, recipe, path in compared(fact):
        assert setting(recipe, path) == ADDRESS_BY_NAME[names[index]], recipe


@needs_facts
def test_synthetic_graphs_start_from_scratch_and_cycles_take_all_nodes_a_step() -> None:
    assert {setting(recipe, SOURCE) for recipe in SYNTHETIC} == {"scratch"}
    assert texts_of(SPPT, r"\| Mechanistic \|[^\n]* / (\w+) / \d") == ("all",)
    cycle, num_graphlets, largest = numbers_of(
        SPPT, r"Cycle of # nodes; every 4th node \(# places\)[^\n]* of up to # nodes joined"
    )
    smallest = 2
    assert texts_of(
        SPPT, r"nodes take sentences of that topic[^\n]*\[C\] in order of (\w+) topic"
    ) == ("decreasing",)
    for recipe in CYCLES:
        assert setting(recipe, "graph.sentences") == "strongest"
        mean_nodes = cycle + num_graphlets * (smallest + largest) / 2
        assert setting(recipe, BATCH) == mean_nodes


@needs_facts
@pytest.mark.parametrize(
    "model, pattern",
    [
        ("cldr", r"batch # sentences, <= \d+ epochs"),
        ("clgs", r"tau \.1, batch #, lr"),
        ("clner", r"Batch # sentences; all tokens pooled"),
    ],
)
def test_the_recipe_of_ade_resolves_to_the_batch_of_the_document(
    model: str, pattern: str, tiny_words: WordStore
) -> None:
    """The recipe leaves it open: the method has one for each model."""
    entry = METHODS["relation_graphs"]
    recipe = merge(entry.config, entry.recipes["paper_ade"].settings)
    config = override_all(recipe, {"model": model})
    num_rows = len(read_fold(tiny_words, config.data).train)
    assert numbers_of(ADE, pattern) == [num_rows / steps_per_epoch(config, tiny_words)]


@needs_facts
def test_pairs_are_dropped_and_the_weight_of_the_probe_is_chosen_as_the_documents_say() -> None:
    (fate,) = texts_of(BIOS, r"Rejected examples are (drop)ped for this pass")
    for recipe in TITLES:
        assert setting(recipe, "plan.conflicts") == fate
    assert texts_of(ADE, r"(class-weighted) or sampled negatives chosen on validation")
    entry = METHODS["relation_graphs"]
    weights = entry.recipes["paper_ade"].settings["evaluation"]["probe_positive_weights"]
    assert len(set(weights)) > 1 and 1 in weights


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
    (epochs,) = numbers_of(BIOS, r"; epochs #; warmup")
    for recipe in TITLES:
        assert setting(recipe, STEPS) == int(epochs * millions * 1e6 / setting(recipe, BATCH))
        assert setting(recipe, EPOCHS) is None


def test_every_published_recipe_is_compared_with_a_document() -> None:
    found = {(recipe, path) for fact in FACTS + CHECKPOINTS for _, recipe, path in compared(fact)}
    published = {
        f"{method} {name}": recipe.settings
        for method, entry in METHODS.items()
        for name, recipe in entry.recipes.items()
        if name.startswith("paper_")
    }
    assert {recipe for recipe, _ in found} == published.keys()
    decisive = {
        (recipe, f"{section}.{leaf}")
        for recipe, settings in published.items()
        for section, leaves in settings.items()
        for leaf in leaves
        if f"{section}.{leaf}" in DECISIVE
    }
    assert decisive - found == COMPARED_BY_A_TEST_OF_ITS_OWN
