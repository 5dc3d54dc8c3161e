"""Clusters of related sequences, by the alignments of MMseqs2 (Steinegger and Söding 2017).

Alignments find relatives that ``clusters.py`` misses: with fewer than half of the residues equal,
or with insertions and deletions. Debian, Homebrew and Bioconda have the program ``mmseqs``.

Shape letters: N proteins.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raybio.core.errors import ConfigError, DataError
from raybio.methods.sppt.proteins.clusters import number_by_first_member
from raybio.store.ragged import Ragged

MIN_COVERAGE = 0.8
"""Least fraction of the shorter protein that an alignment covers."""

FAST = 4.0
SENSITIVE = 7.5
"""Sensitivities by MMseqs2's own names. From an identity of 0.5, the fast one finds the same
relatives in a sixth of the time; below, it misses relatives with insertions and deletions."""


def check_mmseqs() -> str:
    """Return the version of the installed MMseqs2.

    Raises:
        ConfigError: if there is no program ``mmseqs``.
    """
    if shutil.which("mmseqs") is None:
        raise ConfigError(
            "--relatives mmseqs2: there is no program mmseqs on PATH. Install MMseqs2 (apt-get "
            "install mmseqs2, brew install mmseqs2 or conda install -c bioconda mmseqs2), or use "
            "--relatives kmers, which needs no program"
        )
    return _run(["version"]).strip()


def mmseqs_clusters(sequences: Ragged, folder: Path, *, identity: float) -> NDArray[np.int64]:
    """Return the cluster (N,) of each protein, numbered by first member.

    Two proteins are relatives if an alignment (E-value up to 0.001) covers ``MIN_COVERAGE`` of the
    shorter one, with at least the stated fraction of equal residues. A cluster is a set of proteins
    that relatives connect (single linkage).

    Args:
        sequences: upper-case letters of the proteins.
        folder: takes temporary files of some hundred bytes a protein and its letters three times.
        identity: fraction of equal residues, in (0, 1], from which on proteins are relatives.

    Raises:
        DataError: if MMseqs2 fails, with the end of its output.
    """
    num_proteins = len(sequences.indptr_N1) - 1
    with tempfile.TemporaryDirectory(dir=folder) as name:
        work = Path(name)
        _write_fasta(sequences, work / "proteins.fasta")
        arguments = ["easy-cluster", "proteins.fasta", "found", "work"]
        arguments += ["--min-seq-id", str(identity)]
        # Coverage of the target, where the query is the longer one.
        arguments += ["-c", str(MIN_COVERAGE), "--cov-mode", "1"]
        # Connected components of all alignments: a cascade of steps would align representatives
        # only, and leave relatives in different clusters.
        arguments += ["--cluster-mode", "1", "--single-step-clustering", "1"]
        arguments += ["-s", str(FAST if identity >= 0.5 else SENSITIVE)]
        # Allow any number of candidates: otherwise near copies of a protein would displace its
        # distant relatives. Time grows with the square of the largest family.
        arguments += ["--max-seqs", str(max(1, num_proteins))]
        arguments += ["--threads", str(len(os.sched_getaffinity(0)))]
        _run(arguments, work)
        pair_N2 = np.loadtxt(work / "found_cluster.tsv", np.int64, delimiter="\t", ndmin=2)
    representative_N = np.full(num_proteins, -1, np.int64)
    representative_N[pair_N2[:, 1]] = pair_N2[:, 0]
    if (representative_N < 0).any():
        missing = int(np.flatnonzero(representative_N < 0)[0])
        raise DataError(f"MMseqs2 returned no cluster for protein {missing} of {num_proteins}")
    return number_by_first_member(representative_N)


def _write_fasta(sequences: Ragged, path: Path) -> None:
    """Write the proteins, named by their numbers."""
    with path.open("wb") as file:
        for number in range(len(sequences.indptr_N1) - 1):
            start, end = sequences.indptr_N1[number : number + 2]
            file.write(b">%d\n%b\n" % (number, sequences.value_T[start:end].tobytes()))


def _run(arguments: list[str], folder: Path | None = None) -> str:
    """Run MMseqs2 in a folder and return its output.

    Raises:
        DataError: if it fails.
    """
    done = subprocess.run(
        ["mmseqs", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        last_lines = "\n".join(done.stdout.strip().splitlines()[-5:])
        raise DataError(
            f"mmseqs {arguments[0]} ended with exit code {done.returncode}:\n{last_lines}\n"
            "--relatives kmers needs no MMseqs2"
        )
    return done.stdout
