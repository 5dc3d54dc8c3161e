"""Commands of ``raybio prepare`` for benchmarks of factual knowledge."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from raybio.cli.contrastive_probe.options import BENCHMARK_HELP
from raybio.cli.options import LocationType, location_option, writable_file
from raybio.cli.settings import with_settings
from raybio.cli.stores import local_copy
from raybio.core.files import check_writable_folder, replace_text
from raybio.core.records import write_record
from raybio.core.text import skipped_lines
from raybio.methods.contrastive_probe.benchmark.config import MedlamaConfig

benchmarks = typer.Typer()


@benchmarks.command()
@with_settings(MedlamaConfig)
def medlama(
    umls: Annotated[
        LocationType,
        location_option("UMLS's folder META, with MRCONSO.RRF and MRREL.RRF (.gz too)"),
    ],
    out: Annotated[Path, typer.Option(help="folder of the benchmark")],
    config: MedlamaConfig,
    force: Annotated[
        bool, typer.Option("--force", help="replace a benchmark that was built there before")
    ] = False,
) -> None:
    """Build a benchmark in MedLAMA's layout from UMLS: full and hard set.

    Example: raybio prepare medlama --umls META_DIR --out BENCHMARK
    """
    folder = local_copy(umls, "--umls", ("MRCONSO.RRF", "MRREL.RRF"))
    from raybio.methods.contrastive_probe.benchmark.build import build_medlama
    from raybio.methods.contrastive_probe.benchmark.medlama import medlama_files, read_medlama
    from raybio.methods.contrastive_probe.benchmark.statistics import (
        benchmark_statistics,
        statistics_markdown,
    )

    manifest = build_medlama(folder, out, config, force=force, log=print)
    for relation, count_by_name in manifest["relations"].items():
        counts = [f"{count:,} {name.replace('_', ' ')}" for name, count in count_by_name.items()]
        print(f"{relation}: {', '.join(counts)}")
    for relation in manifest["without_queries"]:
        print(f"{relation}: no queries")
    for line in skipped_lines(manifest["skipped"]):
        print(line)
    hard = read_medlama(out, "hard") if medlama_files(out)["hard"] else None
    statistics = benchmark_statistics(read_medlama(out), hard)
    print("\n" + statistics_markdown(statistics, out.resolve().name))


@benchmarks.command()
def hardness(
    benchmark: Annotated[LocationType, location_option("folder with MedLAMA's files")],
    out: Annotated[
        Path | None,
        typer.Option(
            callback=writable_file,
            help="write the disputed queries here, as a tab-separated table",
        ),
    ] = None,
) -> None:
    """Count MedLAMA's hard queries: by the stored scores, the authors' code, and the definition.

    Example: raybio prepare hardness --benchmark MEDLAMA
    """
    folder = local_copy(benchmark, "--benchmark")
    from raybio.methods.contrastive_probe.benchmark.hardness import (
        VERSIONS,
        read_hardness,
        write_disputed,
    )

    queries = list(read_hardness(folder))
    disputed = [query for query in queries if query.is_disputed]
    for version in VERSIONS:
        num_hard = sum(getattr(query, version).is_hard for query in queries)
        print(f"{version}: {num_hard:,} of {len(queries):,} queries are hard")
    print(f"{len(disputed):,} queries are disputed")
    if out is not None:
        write_disputed(out, disputed)


@benchmarks.command()
def statistics(
    benchmark: Annotated[LocationType, location_option(BENCHMARK_HELP)],
    out: Annotated[Path, typer.Option(help="folder of the tables and the figure")],
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="model folder or hub id whose tokenizer counts the answers; default: words"
        ),
    ] = None,
) -> None:
    """Write statistics of a benchmark next to published ones (the paper's Table 6, Figure 1).

    Example: raybio prepare statistics --benchmark MEDLAMA --out statistics/
    """
    check_writable_folder(out)
    folder = local_copy(benchmark, "--benchmark")
    from raybio.methods.contrastive_probe.benchmark.biolama import is_biolama, read_benchmark
    from raybio.methods.contrastive_probe.benchmark.medlama import medlama_files
    from raybio.methods.contrastive_probe.benchmark.statistics import (
        benchmark_statistics,
        statistics_markdown,
    )

    full = read_benchmark(folder, "full")
    has_hard = not is_biolama(folder) and medlama_files(folder)["hard"]
    hard = read_benchmark(folder, "hard") if has_hard else None
    from raybio.methods.contrastive_probe.plots import plot_statistics

    count_tokens = None
    if tokenizer is not None:
        from raybio.encoders.text_checkpoint import token_counts

        count_tokens = partial(token_counts, tokenizer)
    data = benchmark_statistics(full, hard, count_tokens)
    out.mkdir(parents=True, exist_ok=True)
    write_record(out / "statistics.json", "report", data)
    text = statistics_markdown(data, benchmark.name or folder.resolve().name)
    replace_text(out / "statistics.md", text + "\n")
    print(text)
    print(f"\nwritten: {out / 'statistics.md'}, {plot_statistics(data, out / 'statistics.png')}")
