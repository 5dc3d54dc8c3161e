"""The commands of ``jobs/prepare.py`` that are about benchmarks of factual knowledge: built, judged and counted."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from raybio.cli.app import meanings, settings_of
from raybio.core.files import check_writable_file, check_writable_folder
from raybio.methods.contrastive_probe.benchmark.biolama import read_benchmark
from raybio.methods.contrastive_probe.benchmark.build import build_medlama
from raybio.methods.contrastive_probe.benchmark.config import MedlamaConfig
from raybio.methods.contrastive_probe.benchmark.medlama import read_medlama
from raybio.methods.contrastive_probe.benchmark.statistics import (
    benchmark_statistics,
    read_hardness,
    statistics_markdown,
)

benchmarks = typer.Typer()


MEDLAMA, MEDLAMA_HELP = MedlamaConfig(), meanings(MedlamaConfig)


@benchmarks.command()
def medlama(
    umls: Annotated[
        Path, typer.Option(help="UMLS's folder META, with MRCONSO.RRF and MRREL.RRF (.gz too)")
    ],
    out: Annotated[Path, typer.Option(help="folder of the benchmark")],
    per_relation: Annotated[
        int, typer.Option(help=MEDLAMA_HELP["per_relation"])
    ] = MEDLAMA.per_relation,
    seed: Annotated[int, typer.Option(help=MEDLAMA_HELP["seed"])] = MEDLAMA.seed,
    max_answers: Annotated[
        int, typer.Option(help=MEDLAMA_HELP["max_answers"])
    ] = MEDLAMA.max_answers,
    legacy: Annotated[bool, typer.Option("--legacy", help=MEDLAMA_HELP["legacy"])] = MEDLAMA.legacy,
    force: Annotated[
        bool, typer.Option("--force", help="replace a benchmark that was built there before")
    ] = False,
) -> None:
    """A benchmark of factual knowledge in MedLAMA's layout, from UMLS: queries and their answers, full and hard set."""
    config = settings_of(MedlamaConfig, locals())
    manifest = build_medlama(umls, out, config, force=force, say=print)
    for relation, facts in manifest["relations"].items():
        print(
            f"{relation}: "
            + ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in facts.items())
        )
    for relation in manifest["without_queries"]:
        print(f"{relation}: no queries")
    for reason, facts in manifest["left_out"].items():
        print(f"left out: {reason}: {facts['count']:,}")
    hard = (
        read_medlama(out, "hard")
        if any(one["hard"] for one in manifest["relations"].values())
        else None
    )
    print("\n" + statistics_markdown(benchmark_statistics(read_medlama(out), hard), str(out)))


@benchmarks.command()
def hardness(
    benchmark: Annotated[Path, typer.Option(help="folder with MedLAMA's files")],
    out: Annotated[
        Path | None, typer.Option(help="write the disputed queries here, as a tab-separated table")
    ] = None,
) -> None:
    """Which of MedLAMA's queries are hard: by the files' scores, as the authors' code reckons, and as it is meant."""
    if out is not None:
        check_writable_file(out)
    judged = list(read_hardness(benchmark))
    disputed = [one for one in judged if one.is_disputed]
    for name in ("stored", "legacy", "clean"):
        print(
            f"{name}: {sum(getattr(one, name).is_hard for one in judged):,} of {len(judged):,} queries are hard"
        )
    print(f"{len(disputed):,} queries are disputed")
    if out is not None:
        columns = ("stored", "legacy", "clean")
        lines = ["\t".join(["file", "line", "head", *columns])]
        for one in disputed:
            shown = ["hard" if getattr(one, name).is_hard else "easy" for name in columns]
            lines.append("\t".join([one.file, str(one.line), one.head, *shown]))
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("\n".join(lines) + "\n", encoding="utf-8")


@benchmarks.command()
def statistics(
    benchmark: Annotated[
        Path, typer.Option(help="folder of the benchmark: MedLAMA's files, or a source of BioLAMA")
    ],
    out: Annotated[Path, typer.Option(help="folder of the tables and the figure")],
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="model folder or hub id: answers are counted in its tokens; default: in words"
        ),
    ] = None,
) -> None:
    """What a benchmark is made of, beside the published ones: the MedLAMA paper's Table 6 and Figure 1."""
    check_writable_folder(out)
    full = read_benchmark(benchmark, "full")
    hard = read_benchmark(benchmark, "hard") if any(benchmark.rglob("*_hard.csv")) else None
    # Only now: matplotlib takes a second, transformers more.
    from raybio.methods.contrastive_probe.plots import plot_statistics

    count_tokens = None
    if tokenizer is not None:
        from raybio.encoders.text_checkpoint import token_counts

        count_tokens = partial(token_counts, tokenizer)
    data = benchmark_statistics(full, hard, count_tokens)
    out.mkdir(parents=True, exist_ok=True)
    (out / "statistics.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    text = statistics_markdown(data, str(benchmark))
    (out / "statistics.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    print(f"\nwritten: {out / 'statistics.md'}, {plot_statistics(data, out / 'statistics.png')}")
