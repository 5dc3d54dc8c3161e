"""A dry run of each paper at full number: rows, links, terms, anchors and queries, with tiny texts and encoders.

    python benchmarks/full_size.py tree_of_life --folder FOLDER --log full_size.jsonl
    python benchmarks/full_size.py pubtator --share 1/30 --folder FOLDER --log full_size.jsonl
    python benchmarks/full_size.py --record full_size.jsonl

Each stage runs in a process of its own and appends a line to the log when it ends: peak memory, processor time and disk.
An interrupted run loses one stage; given again, it resumes at the next (files are in FOLDER, until ``--remove``). A
stage that does not end in ``--limit`` seconds is recorded as such. Training takes ``NUM_STEPS`` steps in this process,
without Ray. ``--record`` puts the figures of a log into ``full_size.json``, and writes the table of docs/full_size.md from
it; that page says what they leave out.
"""

import argparse
import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import p37_pubmed
from p37_pubmed import Watch, anonymous_bytes

from raybio.core.config import override_all
from raybio.methods import METHODS
from raybio.methods.contrastive_probe.prepare import prepare_sentences
from raybio.methods.mtb_mccl.documents.prepare import prepare_documents
from raybio.methods.mtb_mccl.mtb.config import PairCountConfig
from raybio.methods.mtb_mccl.mtb.recurring_pairs import count_in_process, save_recurring_pairs
from raybio.methods.relation_graphs.prepare import prepare_words
from raybio.methods.sppt.articles.formats.tables import LinkedTables
from raybio.methods.sppt.prepare import prepare_linked_texts, prepare_proteins
from raybio.methods.sppt.proteins.demo import SimulationConfig, write_tree_of_life
from raybio.methods.sppt.proteins.formats.tree_of_life import TreeOfLife
from raybio.training.collective import SingleProcess
from raybio.training.loop import fit

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Real files, as tests find them. The small papers are run on them as they are."""

RESULTS = Path(__file__).with_name("full_size.json")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "full_size.md"

NUM_STEPS = 10
NOT_ENDED = "did not end"

Facts = dict[str, Any]

TINY_ENCODER = {
    "encoder.source": "scratch",
    "encoder.num_layers": 1,
    "encoder.width": 32,
    "encoder.num_heads": 2,
    "encoder.ffn_width": 32,
    "precision": "fp32",
    "memory.max_tokens_per_micro_batch": 16_384,
    "schedule.max_steps": NUM_STEPS,
    "schedule.evaluate_every_steps": 0,
}
TINY_TEXTS = TINY_ENCODER | {"encoder.max_length": 32, "encoder.vocabulary_size": 2000}
TINY_DOCUMENTS = TINY_TEXTS | {
    "encoder.max_length": 256,
    "encoder.max_document_tokens": 1024,
    "plan.global_batch_rows": 32,
    "objective.kind": "mccl",
}


@dataclass(frozen=True)
class Paper:
    """A paper's data at full number, and the settings that make its encoder tiny.

    Attributes:
        counts: what its data have at full number, by name.
        simulate: writes a share of it into a folder; None: real files.
        prepare: makes the store ``FOLDER/store``, and returns more facts.
        method: name of its method.
        settings: settings of the run.
    """

    counts: Mapping[str, int]
    simulate: Callable[[Path, Mapping[str, int]], None] | None
    prepare: Callable[[Path], Facts]
    method: str
    settings: Mapping[str, object]


def simulate_tree_of_life(folder: Path, counts: Mapping[str, int]) -> None:
    config = SimulationConfig(
        num_species=counts["species"],
        num_proteins=counts["proteins"],
        num_links=counts["links"],
        num_families=400,
        domain_length=16,
    )
    write_tree_of_life(folder / "raw", config, one_fasta=True)


def prepare_tree_of_life(folder: Path) -> Facts:
    raw = folder / "raw"
    source = TreeOfLife(
        raw / "interactomes", raw / "treeoflife.species.tsv", raw / "protein.sequences.fa"
    )
    return dict(prepare_proteins(folder / "store", source).manifest["counts"])


def simulate_articles(folder: Path, counts: Mapping[str, int]) -> None:
    """Articles of four and eight words, and citations with a few articles that are cited often."""
    rng = np.random.default_rng(0)
    num_articles = counts["articles"]
    with (folder / "articles.tsv").open("w") as file:
        file.write("id\ttitle\tabstract\n")
        for number, words in enumerate(_words(num_articles, 12, rng)):
            file.write(f"a{number}\t{' '.join(words[:4])}\t{' '.join(words[4:])}\n")
    cited = (num_articles * rng.random(counts["citations"]) ** 3).astype(np.int64)
    citing = rng.integers(num_articles, size=counts["citations"])
    with (folder / "citations.tsv").open("w") as file:
        file.write("citing\tcited\n")
        for first in range(0, len(cited), 100_000):
            pairs = zip(
                citing[first : first + 100_000].tolist(),
                cited[first : first + 100_000].tolist(),
                strict=True,
            )
            file.writelines(f"a{u}\ta{v}\n" for u, v in pairs)


def _words(num_texts: int, num_words: int, rng: np.random.Generator) -> Iterator[list[str]]:
    """Yield texts of words with the frequencies of words."""
    vocabulary = np.array([f"w{number:x}" for number in range(30_000)])
    for first in range(0, num_texts, 10_000):
        shape = (min(10_000, num_texts - first), num_words)
        yield from vocabulary[(len(vocabulary) * rng.random(shape) ** 4).astype(int)].tolist()


def prepare_articles(folder: Path) -> Facts:
    source = LinkedTables(folder / "articles.tsv", folder / "citations.tsv")
    return dict(prepare_linked_texts(folder / "store", source).manifest["counts"])


def simulate_pubmed(folder: Path, counts: Mapping[str, int]) -> None:
    p37_pubmed.simulate(folder, counts["articles"])


def prepare_pubmed(folder: Path) -> Facts:
    facts = p37_pubmed.merge(folder)
    return facts["counts"] | {"peak_disk_bytes": facts["draft_peak_bytes"]}


ENTITY_TYPES = (("Gene", "{}"), ("Disease", "MESH:D{:06d}"), ("Chemical", "MESH:C{:06d}"))
NUM_ENTITIES_PER_TYPE = 100_000
NUM_MENTIONS = 8


def simulate_pubtator(folder: Path, counts: Mapping[str, int]) -> None:
    """Documents of a sentence a mention; a few entities are in many documents."""
    rng = np.random.default_rng(0)
    num_documents = counts["documents"]
    with (folder / "documents.PubTator").open("w") as file:
        for first in range(0, num_documents, 10_000):
            shape = (min(10_000, num_documents - first), NUM_MENTIONS)
            kinds = rng.integers(len(ENTITY_TYPES), size=shape).tolist()
            numbers = (NUM_ENTITIES_PER_TYPE * rng.random(shape) ** 6).astype(int).tolist()
            for row in range(shape[0]):
                mentions = list(zip(kinds[row], numbers[row], strict=True))
                file.write(_pubtator_document(1 + first + row, mentions))


def _pubtator_document(number: int, mentions: list[tuple[int, int]]) -> str:
    title = "A study."
    text = ""
    lines = []
    for kind, entity in mentions:
        name = f"{'gdc'[kind]}{entity:x}"
        start = len(title) + 1 + len(text)
        type_name, id_format = ENTITY_TYPES[kind]
        end = start + len(name)
        lines.append(
            f"{number}\t{start}\t{end}\t{name}\t{type_name}\t{id_format.format(entity + 1)}\n"
        )
        text += f"{name} acts. "
    return f"{number}|t|{title}\n{number}|a|{text.rstrip()}\n{''.join(lines)}\n"


def prepare_pubtator(folder: Path) -> Facts:
    store = prepare_documents(folder / "store", [folder / "documents.PubTator"])
    # Counted once, as `raybio prepare recurring-pairs` does, and not at each start.
    pairs = save_recurring_pairs(store, PairCountConfig(), count_in_process)
    return store.manifest["counts"] | {"recurring_pairs": len(pairs)}


def prepare_biored(folder: Path) -> Facts:
    parts = [[SHARED_DATA / "biored" / f"{part}.PubTator.gz"] for part in ("Train", "Dev", "Test")]
    return dict(prepare_documents(folder / "store", *parts).manifest["counts"])


def simulate_docred(folder: Path, counts: Mapping[str, int]) -> None:
    """Write training documents: Re-DocRED's real validation documents, repeated by other titles."""
    with gzip.open(SHARED_DATA / "re_docred" / "dev_revised.json.gz", "rt") as file:
        real = json.load(file)
    copies = [
        real[number % len(real)] | {"title": f"{real[number % len(real)]['title']} {number}"}
        for number in range(counts["documents"])
    ]
    (folder / "train.json").write_text(json.dumps(copies))


def prepare_docred(folder: Path) -> Facts:
    real = SHARED_DATA / "re_docred"
    store = prepare_documents(
        folder / "store",
        [folder / "train.json"],
        [real / "dev_revised.json.gz"],
        [real / "test_revised.json.gz"],
        relation_names=real / "rel_info.json",
    )
    return dict(store.manifest["counts"])


def prepare_medlama(folder: Path) -> Facts:
    files = sorted((SHARED_DATA / "sentences").glob("*_10k_*.txt.gz"))
    store = prepare_sentences(folder / "store", files, SHARED_DATA / "medlama")
    return dict(store.manifest["counts"])


def prepare_ade(folder: Path) -> Facts:
    ade = SHARED_DATA / "ade"
    store = prepare_words(
        folder / "store", [ade / "ade_full_spert.json.gz"], splits=ade / "cv_splits.json.gz"
    )
    return dict(store.manifest["counts"])


TREE_OF_LIFE = Paper(
    counts={"species": 1_840, "proteins": 1_450_633, "links": 8_762_166},
    simulate=simulate_tree_of_life,
    prepare=prepare_tree_of_life,
    method="sppt_protein",
    settings=TINY_ENCODER
    | {
        "encoder.max_positions": 64,
        "input.max_length": 64,
        "plan.global_batch_rows": 256,
        # Look-up and composition multiply the time of the final table.
        "evaluation.rivals": False,
    },
)

MAG = Paper(
    counts={"articles": 649_880, "citations": 4_302_412},
    simulate=simulate_articles,
    prepare=prepare_articles,
    method="sppt_mag",
    settings=TINY_TEXTS
    | {
        "plan.global_batch_rows": 256,
        # All articles are one group: ranking all of them takes hours of a core.
        "evaluation.num_nodes_per_group_at_the_end": 1000,
        "evaluation.rivals": False,
    },
)

PUBMED = Paper(
    counts={"articles": 36_000_000},
    simulate=simulate_pubmed,
    prepare=prepare_pubmed,
    method="biostransformers",
    settings=TINY_TEXTS
    | {
        "plan.global_batch_rows": 384,
        "plan.fields": ["title", "abstract"],
        "plan.stop_terms": "check_tags",
        # The paper's validation articles, as in its recipe.
        "evaluation.num_articles_at_the_end": 18_557,
        "evaluation.rivals": False,
    },
)

ADE = Paper(
    counts={"sentences": 4_272},
    simulate=None,
    prepare=prepare_ade,
    method="relation_graphs",
    settings=TINY_TEXTS
    | {
        "model": "joint",
        "encoder.max_length": 256,
        "encoder.num_frozen_layers": 0,
        "schedule.early_stopping_metric": "null",
        "plan.global_batch_rows": 8,
    },
)


def changed(paper: Paper, settings: dict[str, Any]) -> Paper:
    """Return a paper's data with other settings."""
    return replace(paper, settings={**paper.settings, **settings})


RIVALS = {"evaluation.rivals": True}
GRAPHS = {"evaluation.test_graphs": 5}

PAPERS = {
    "tree_of_life": TREE_OF_LIFE,
    # Final tables as the recipes make them.
    "tree_of_life_rivals": changed(TREE_OF_LIFE, RIVALS),
    "mag": MAG,
    "mag_rivals": changed(MAG, RIVALS | GRAPHS),
    "mag_default": changed(
        MAG, RIVALS | GRAPHS | {"evaluation.num_nodes_per_group_at_the_end": 5000}
    ),
    "pubmed": PUBMED,
    "pubmed_rivals": changed(PUBMED, RIVALS),
    "pubmed_drop": changed(PUBMED, {"plan.conflicts": "drop", "plan.stop_terms": "none"}),
    "pubtator": Paper(
        counts={"documents": 30_000_000},
        simulate=simulate_pubtator,
        prepare=prepare_pubtator,
        method="mtb_pretrain",
        settings=TINY_TEXTS
        | {
            "encoder.max_length": 128,
            "encoder.max_document_tokens": 240,
            "plan.global_batch_rows": 16,
        },
    ),
    "biored": Paper(
        counts={"documents": 600},
        simulate=None,
        prepare=prepare_biored,
        method="relation_finetune",
        settings=TINY_DOCUMENTS,
    ),
    "docred": Paper(
        counts={"documents": 3_053},
        simulate=simulate_docred,
        prepare=prepare_docred,
        method="relation_finetune",
        settings=TINY_DOCUMENTS,
    ),
    "medlama": Paper(
        counts={"sentences": 100_000, "queries": 19_000},
        simulate=None,
        prepare=prepare_medlama,
        method="contrastive_probe",
        settings=TINY_TEXTS | {"cloze.max_tokens": 32, "evaluation.max_query_tokens": 32},
    ),
    "ade": ADE,
    "ade_cldr": changed(ADE, {"model": "cldr"}),
    "ade_clgs": changed(ADE, {"model": "clgs"}),
    "ade_clner": changed(ADE, {"model": "clner"}),
}


def simulate(paper: Paper, folder: Path, share: Fraction) -> Facts:
    counts = {name: max(1, int(count * share)) for name, count in paper.counts.items()}
    if paper.simulate is not None:
        paper.simulate(folder, counts)
    return counts


def prepare(paper: Paper, folder: Path, share: Fraction) -> Facts:
    return paper.prepare(folder)


def plan(paper: Paper, folder: Path, share: Fraction) -> Facts:
    """Open the store and collate steps at the begin, in the middle and at the end of an epoch."""
    system, _ = _system(paper, folder)
    before = anonymous_bytes()
    started = time.process_time()
    system.collate(0, 0, 1)
    first = time.process_time()
    num_steps = max(NUM_STEPS, int(system.steps_per_epoch))
    num_collated = 0
    for position in (0, num_steps // 2, num_steps - NUM_STEPS):
        for step in range(position, position + NUM_STEPS):
            system.collate(step, 0, 8)
            num_collated += 1
    return {
        "private_bytes": anonymous_bytes() - before,
        "first_step_seconds": first - started,
        "step_seconds": (time.process_time() - first) / num_collated,
        "steps_per_epoch": num_steps,
    }


def train(paper: Paper, folder: Path, share: Fraction) -> Facts:
    """Train some steps of the run, for one worker."""
    system, config = _system(paper, folder)
    started = time.process_time()
    for report in fit(system, config):
        last = report
    return {"train_seconds": time.process_time() - started, "steps": last.step}


def evaluate_during_training(paper: Paper, folder: Path, share: Fraction) -> Facts:
    system, _ = _system(paper, folder)
    started = time.process_time()
    metrics = dict(system.evaluate(system.model, SingleProcess())) if system.evaluate else {}
    return {"evaluate_seconds": time.process_time() - started, "metrics": len(metrics)}


def evaluate_at_the_end(paper: Paper, folder: Path, share: Fraction) -> Facts:
    """Score the model, the initial and random embeddings, and rivals where the settings have them."""
    system, _ = _system(paper, folder)
    started = time.process_time()
    assert system.final_evaluate is not None
    final = system.final_evaluate(system.model, SingleProcess())
    return {
        "evaluate_seconds": time.process_time() - started,
        "rows": sorted(final.scores),
        "remarks": list(final.remarks),
    }


def export(paper: Paper, folder: Path, share: Fraction) -> Facts:
    system, _ = _system(paper, folder)
    shutil.rmtree(folder / "export", ignore_errors=True)
    return {"export_bytes": size_of(system.export(folder / "export", {}))}


def _system(paper: Paper, folder: Path) -> tuple[Any, Any]:
    method = METHODS[paper.method]
    config = override_all(method.config(), dict(paper.settings))
    return method.build(config, folder / "store"), config


STAGES: dict[str, Callable[[Paper, Path, Fraction], Facts]] = {
    "simulate": simulate,
    "prepare": prepare,
    "plan": plan,
    "train": train,
    "evaluate": evaluate_during_training,
    "final": evaluate_at_the_end,
    "export": export,
}


def size_of(folder: Path) -> int:
    """Return the bytes on disk of a folder's files, holes not counted."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(path) / name).lstat().st_blocks * 512
            except FileNotFoundError:
                continue  # removed meanwhile
    return total


def measured(stage: str, paper: Paper, folder: Path, share: Fraction) -> Facts:
    """Run a stage in this process; return its facts, memory, processor time and disk."""
    wall = time.perf_counter()
    with Watch(anonymous_bytes) as memory, Watch(lambda: size_of(folder)) as disk:
        facts = STAGES[stage](paper, folder, share)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Not ru_maxrss of this process, which begins with its parent's peak.
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return {
        "peak_bytes": peak,
        "anonymous_bytes": max(memory.peak, anonymous_bytes()),
        "core_seconds": time.process_time() + children.ru_utime + children.ru_stime,
        "wall_seconds": time.perf_counter() - wall,
        "disk_bytes": size_of(folder),
        "peak_disk_bytes": max(disk.peak, size_of(folder)),
        "facts": facts,
    }


def run_stage(stage: str, name: str, folder: Path, share: Fraction, limit: float) -> Facts:
    """Run a stage in a process of its own."""
    command = [sys.executable, "-W", "ignore", __file__, name, "--child", stage]
    command += ["--folder", str(folder), "--share", str(share)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"problem": f"{NOT_ENDED} in {limit:,.0f} s"}
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr)
        # A killed process says nothing.
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return {"problem": f"failed: {lines[-1][:300]}"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run(
    name: str, folder: Path, share: Fraction, log: Path, stages: list[str], limit: float
) -> bool:
    """Run the stages that the log does not have yet; return whether all of them ended."""
    folder.mkdir(parents=True, exist_ok=True)
    ended = {
        (line["paper"], line["share"], line["stage"])
        for line in read_log(log)
        if "problem" not in line
    }
    for stage in stages:
        if (name, str(share), stage) in ended:
            continue
        if stage == "prepare":
            shutil.rmtree(folder / "store", ignore_errors=True)
        found = run_stage(stage, name, folder, share, limit)
        line = {"paper": name, "share": str(share), "stage": stage} | found
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
        # Later stages need the store.
        if "problem" in line and stage in ("simulate", "prepare"):
            return False
    return True


def read_log(log: Path) -> list[Facts]:
    """Return the lines of a log; of several of one stage, the last one."""
    if not log.exists():
        return []
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return list({(line["paper"], line["share"], line["stage"]): line for line in lines}.values())


def figures(line: Facts) -> Facts:
    """Return what the table shows of a line of a log."""
    found = {name: line[name] for name in ("paper", "share", "stage")}
    if "problem" in line:
        return found | {"problem": line["problem"]}
    return found | {
        "peak_mib": round(line["peak_bytes"] / 2**20),
        "anonymous_mib": round(line["anonymous_bytes"] / 2**20),
        "core_seconds": round(line["core_seconds"]),
        "disk_gb": round(line["disk_bytes"] / 1e9, 2),
    }


def read_results() -> list[Facts]:
    """Return the figures that are kept, in the order of the table."""
    return list(json.loads(RESULTS.read_text()))


def record(log: Path) -> None:
    """Put the figures of a log into ``RESULTS``, and write the table of ``PAGE``; others are kept."""
    kept = {}
    for row in [*read_results(), *map(figures, read_log(log))]:
        kept[row["paper"], row["share"], row["stage"]] = row
    order = {name: number for number, name in enumerate([*PAPERS, *STAGES])}
    rows = sorted(
        kept.values(),
        key=lambda row: (order[row["paper"]], Fraction(row["share"]), order[row["stage"]]),
    )
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    before, found, rest = PAGE.read_text().partition(HEADER)
    if not found:
        sys.exit(f"{PAGE} has no table that begins with\n{HEADER}")
    after = rest.partition("\n\n")[2]
    PAGE.write_text(f"{before}{table(rows)}\n\n{after}")


HEADER = (
    "| data | share | stage | peak RSS, MiB | anonymous, MiB | processor time, s | disk after, GB |"
)


def table(rows: list[Facts]) -> str:
    """Return figures as a Markdown table."""
    lines = [HEADER, "|---|--:|---|--:|--:|--:|--:|"]
    for row in rows:
        cells = [row["paper"], row["share"], row["stage"]]
        if "problem" in row:
            shown = f"{' | '.join([*cells, row['problem']])} |  |  |  |"
        else:
            cells += [
                f"{row['peak_mib']:,}",
                f"{row['anonymous_mib']:,}",
                f"{row['core_seconds']:,}",
                f"{row['disk_gb']:.2f}",
            ]
            shown = f"{' | '.join(cells)} |"
        lines.append(f"| {shown}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paper", nargs="?", choices=list(PAPERS), help="whose data")
    parser.add_argument("--share", type=Fraction, default=Fraction(1), help="of the full number")
    parser.add_argument("--folder", type=Path, help="folder of files and stores, up to 30 GB")
    parser.add_argument("--log", type=Path, help="file of JSON lines, which is appended to")
    parser.add_argument("--stages", default=",".join(STAGES), help="some of the stages")
    parser.add_argument("--limit", type=float, default=3600, help="seconds of a stage")
    parser.add_argument("--remove", action="store_true", help="remove the folder at the end")
    parser.add_argument(
        "--record",
        type=Path,
        metavar="LOG",
        help="keep the figures of a log and write the page's table, run nothing",
    )
    parser.add_argument("--child", choices=list(STAGES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.record:
        record(arguments.record)
        return
    if arguments.paper is None or arguments.folder is None:
        parser.error("want a paper and --folder")
    if arguments.child:
        paper = PAPERS[arguments.paper]
        found = measured(arguments.child, paper, arguments.folder, arguments.share)
        print(json.dumps(found))
        return
    log = arguments.log or arguments.folder / "log.jsonl"
    stages = arguments.stages.split(",")
    is_whole = run(arguments.paper, arguments.folder, arguments.share, log, stages, arguments.limit)
    if arguments.remove:
        shutil.rmtree(arguments.folder)
    sys.exit(not is_whole)


if __name__ == "__main__":
    main()
