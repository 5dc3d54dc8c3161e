"""Reader of the table of GFP genotypes (Sarkisyan et al. 2016), split by mutations as in TAPE."""

from collections.abc import Iterator
from pathlib import Path

from raybio.methods.sppt.downstream.formats.example import Example, named_errors
from raybio.store.table_rows import read_columns

GFP = (
    "SKGEELFTGVVPILVELDGDVNGHKFSVSGEGEGDATYGKLTLKFICTTGKLPVPWPTLVTTLSYGVQCFSRYPDHMKQHDFFKSAM"
    "PEGYVQERTIFFKDDGNYKTRAEVKFEGDTLVNRIELKGIDFKEDGNILGHKLEYNYNSHNVYIMADKQKNGIKVNFKIRHNIEDGS"
    "VQLADHYQQNTPIGDGPVLLPDNHYLSTQSALSKDPNEKRDHMVLLEFVTAAGITHGMDELYK"
)
"""Wild type without the first methionine. Positions of mutations count from 0."""

MAX_TRAINING_MUTATIONS = 3
"""TAPE trains on variants with at most this many mutations and tests on the others."""

TABLE_COLUMNS = ("aamutations", "medianbrightness")
"""In lower case, as tables are read."""


def read_gfp_genotypes(path: Path) -> Iterator[Example]:
    """Yield the sequence and brightness of genotypes such as ``SA108D:SK3R``."""
    wanted = "mutations such as SA108D, positions counted from 0, and a brightness"
    for rows in read_columns(path, "genotypes", lambda _: TABLE_COLUMNS):
        for number, mutated, measured in zip(rows.lines, *rows.columns, strict=True):
            residues = list(GFP)
            mutations = [mutation for mutation in mutated.strip().split(":") if mutation]
            with named_errors(path, f"line {number}", wanted):
                for mutation in mutations:  # S, old residue, position, new residue
                    old = mutation[1]
                    position = int(mutation[2:-1])
                    if GFP[position] != old:
                        raise ValueError(f"{mutation}, where the wild type has {GFP[position]}")
                    residues[position] = mutation[-1]
                brightness = float(measured)
            split = "train" if len(mutations) <= MAX_TRAINING_MUTATIONS else "test"
            yield Example("".join(residues), split, brightness, path.name, number)
