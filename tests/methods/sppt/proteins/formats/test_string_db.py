import gzip
import random

import numpy as np
import pyarrow as pa
import pytest

from raybio.core.errors import ConfigError, DataError
from raybio.methods.sppt import corpus, link_runs
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.proteins.formats import links as link_blocks
from raybio.methods.sppt.proteins.formats.link_files import read_layout
from raybio.methods.sppt.proteins.formats.links import SkippedProteins, read_links, rows_by_id
from raybio.methods.sppt.proteins.formats.tables import NO_SPECIES, Tables
from raybio.store.quarantine import Quarantine

HEADER = "protein1 protein2 combined_score\n"


def write_string(folder, links, sequences, *, header=HEADER):
    """Write STRING's two files, gzipped, each link in both directions."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{a} {b} {score}\n" for a, b, score in links]
    lines += [f"{b} {a} {score}\n" for a, b, score in links]
    edges = folder / "protein.links.v12.0.txt.gz"
    edges.write_bytes(gzip.compress((header + "".join(sorted(lines))).encode()))
    proteins = folder / "protein.sequences.v12.0.fa.gz"
    records = [f">{key}\n{sequence}\n" for key, sequence in sequences.items()]
    proteins.write_bytes(gzip.compress("".join(records).encode()))
    return Tables([edges], [proteins])


def simulate(species=("83333", "9606", "10090"), num_proteins=40, num_links=150, seed=0):
    rng = random.Random(seed)
    links, sequences = [], {}
    for taxid in species:
        keys = [f"{taxid}.p.{number:04d}" for number in range(num_proteins)]
        sequences |= {key: "".join(rng.choices("ACDEFGHIKLMNPQRSTVWY", k=30)) for key in keys}
        pairs = [tuple(sorted(rng.sample(keys, 2))) for _ in range(num_links)]
        links += [(a, b, rng.randrange(150, 1000)) for a, b in sorted(set(pairs))]
    return links, sequences


def all_links(store):
    keys = store.keys.to_pylist()
    graph = store.graph
    u = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    pairs = [*zip(u.tolist(), graph.indices.tolist(), strict=True), *store.heldout.tolist()]
    return {tuple(sorted((keys[a], keys[b]))) for a, b in pairs}


@pytest.mark.parametrize("min_score", [0, 700])
@pytest.mark.parametrize("taxids", [(), ("9606",), ("83333", "10090")])
def test_links_of_a_score_and_of_some_species_become_a_store(tmp_path, min_score, taxids):
    links, sequences = simulate()
    source = write_string(tmp_path, links, sequences)
    config = PrepareConfig(min_score=min_score, taxids=taxids)
    store = prepare_proteins(tmp_path / "store", source, config)
    kept = [
        link
        for link in links
        if link[2] >= min_score and (not taxids or link[0].split(".")[0] in taxids)
    ]
    assert all_links(store) == {(a, b) for a, b, _ in kept}
    assert sorted(store.group_names) == sorted(taxids or ("83333", "9606", "10090"))
    for row, key in enumerate(store.keys.to_pylist()):
        span = slice(*store.indptr_N1[row : row + 2])
        assert store.residue_T[span].tobytes().decode() == sequences[key]
    counts = {reason: facts["count"] for reason, facts in store.manifest["quarantine"].items()}
    in_species = [link for link in links if not taxids or link[0].split(".")[0] in taxids]
    expected = {"duplicate link (merged)": len(kept)}
    if min_score:
        expected["link with a score below 700 (--min-score)"] = 2 * (len(in_species) - len(kept))
    if taxids:
        expected["link of a species that is not in --taxid"] = 2 * (len(links) - len(in_species))
    assert counts == expected
    assert store.manifest["parameters"]["min_score"] == min_score


def test_files_in_any_order_and_blocks_of_any_size_give_the_same_links(tmp_path, monkeypatch):
    links, sequences = simulate()
    keys = list(sequences)
    random.Random(1).shuffle(keys)
    source = write_string(tmp_path, links, {key: sequences[key] for key in keys})
    array = pa.array(keys, pa.large_string())
    names = ["83333", "9606", "10090"]
    group_N = np.array([names.index(key.split(".")[0]) for key in keys])
    rows = rows_by_id(array, group_N, names, (), SkippedProteins(pa.array([], pa.string()), ()))
    layout = read_layout(source.edges[0])
    expected = sorted(tuple(sorted((keys.index(a), keys.index(b)))) for a, b, _ in links)
    for block_bytes, links_per_run in ((1 << 20, 1 << 20), (500, 7), (5000, 100)):
        monkeypatch.setattr(link_runs, "LINKS_PER_RUN", links_per_run)
        quarantine = Quarantine()
        collector = corpus.LinkCollector(quarantine, array, tmp_path)
        read = read_links(layout, rows, group_N, quarantine, block_bytes=block_bytes)
        for block in read:
            collector.add(*block, source.edges[0].name)
        assert [tuple(pair) for pair in collector.merged().tolist()] == expected
        assert quarantine.num_seen("link") == 2 * len(links)
        assert quarantine.count_by_reason == {"duplicate link (merged)": len(links)}
        # The second of two lines of a link, which the file lists in order of its ids.
        lines = gzip.decompress(source.edges[0].read_bytes()).decode().splitlines()
        for example in quarantine.examples_by_reason["duplicate link (merged)"]:
            assert set(lines[example.line - 1].split()[:2]) == set(example.detail.split())
            assert example.line > lines.index(" ".join(reversed_link(lines[example.line - 1]))) + 1


def test_a_block_without_a_good_line_is_read_where_species_are_left_out(tmp_path):
    good = ["A\tB", "B\tC", "A\tC"] * 10
    path = tmp_path / "e.tsv"
    path.write_text("\n".join(["protein_a\tprotein_b", *good, *["A\tB\tC"] * 40]) + "\n")
    keys = pa.array(["A", "B", "C"], pa.large_string())
    skipped = SkippedProteins(pa.array(["D"], pa.string()), ("9606",))
    rows = rows_by_id(keys, np.zeros(3, np.int64), ["562"], ("562",), skipped)
    quarantine = Quarantine(max_bad_share=1)
    blocks = list(
        read_links(read_layout(path), rows, np.zeros(3, np.int64), quarantine, block_bytes=64)
    )
    assert sum(len(block.u_E) for block in blocks) == len(good)
    assert quarantine.count_by_reason == {"line with too many or too few columns": 40}


def reversed_link(line):
    a, b, score = line.split()
    return b, a, score


def test_every_kind_of_bad_line_is_skipped_with_its_reason_and_line(tmp_path):
    sequences = {f"7.p{number}": "ACDEF" for number in range(30)} | {"8.q1": "ACD", "8.q2": "ACD"}
    good = [(f"7.p{a}", f"7.p{a + 1}", 900) for a in range(29)] + [("8.q1", "8.q2", 800)]
    source = write_string(tmp_path, good, sequences)
    odd = [
        "7.p1 7.p1 900",
        "7.p1 7.nobody 900",
        "7.p1 9.p2 900",
        "7.p1 8.q1 900",
        "7.p1 7.p9 high",
        "7.p1 7.p9 1001",
        "7.p1 7.p9",
        "7.p1 7.p9 -3",
    ]
    text = gzip.decompress(source.edges[0].read_bytes()).decode() + "\n".join(odd) + "\n"
    source.edges[0].write_bytes(gzip.compress(text.encode()))
    first = 2 + 2 * len(good)
    config = PrepareConfig(max_bad_share=0.3, heldout_share=0, min_score=1)
    store = prepare_proteins(tmp_path / "store", source, config)
    found = {
        reason: [(example["line"], example["detail"]) for example in facts["examples"]]
        for reason, facts in store.manifest["quarantine"].items()
        if reason != "duplicate link (merged)"
    }
    assert found == {
        "self pair (dropped)": [(first, "7.p1 7.p1")],
        link_blocks.NO_PROTEIN: [(first + 1, "7.p1 7.nobody")],
        link_blocks.NO_SPECIES: [(first + 2, "7.p1 9.p2")],
        link_blocks.ACROSS: [(first + 3, "7.p1 8.q1")],
        link_blocks.NO_SCORE: [
            (first + 4, "7.p1 7.p9 high"),
            (first + 5, "7.p1 7.p9 1001"),
            (first + 7, "7.p1 7.p9 -3"),
        ],
        "line with too many or too few columns": [
            (first + 6, "2 columns, want 3: '7.p1 7.p9'"),
        ],
    }
    assert all_links(store) == {tuple(sorted(link[:2])) for link in good}


def test_files_with_a_column_for_each_channel_are_read(tmp_path):
    links, sequences = simulate(species=("511145",))
    source = write_string(tmp_path, links, sequences)
    text = gzip.decompress(source.edges[0].read_bytes()).decode().splitlines()
    detailed = ["protein1 protein2 neighborhood fusion textmining combined_score"]
    for line in text[1:]:
        a, b, score = line.split()
        detailed.append(f"{a} {b} 0 0 77 {score}")
    source.edges[0].write_bytes(gzip.compress("\n".join(detailed).encode()))
    store = prepare_proteins(tmp_path / "store", source, PrepareConfig(min_score=400))
    assert all_links(store) == {(a, b) for a, b, score in links if score >= 400}


def test_a_table_of_one_kind_goes_with_a_file_of_the_other(tmp_path):
    links, sequences = simulate(species=("511145",))
    source = write_string(tmp_path, links, sequences)
    edges = tmp_path / "edges.tsv"
    edges.write_text("protein_a\tprotein_b\n" + "".join(f"{a}\t{b}\n" for a, b, _ in links))
    proteins = tmp_path / "proteins.tsv"
    rows = [f"{key}\t511145\t{sequence}\n" for key, sequence in sequences.items()]
    proteins.write_text("protein_id\tspecies_taxid\tsequence\n" + "".join(rows))
    whole = prepare_proteins(tmp_path / "0", source)
    for number, mixed in enumerate(
        (
            Tables([edges], source.proteins),
            Tables(source.edges, [proteins]),
            Tables([edges], [proteins]),
        ),
        1,
    ):
        store = prepare_proteins(tmp_path / str(number), mixed)
        assert store.content_digest == whole.content_digest


def test_a_species_that_is_not_there_is_named_and_those_that_are(tmp_path):
    source = write_string(tmp_path, *simulate())
    message = r"--taxid 4932: .* in .*fa\.gz.* whose species are 9606, 10090, 83333\."
    with pytest.raises(DataError, match=message):
        prepare_proteins(tmp_path / "store", source, PrepareConfig(taxids=("9606", "4932")))
    with pytest.raises(ConfigError, match="taxids"):
        PrepareConfig.from_mapping({"taxids": ("human",)})


def test_a_least_score_without_scores_is_refused(tmp_path):
    source = write_string(tmp_path, *simulate())
    edges = tmp_path / "edges.tsv"
    edges.write_text("protein_a\tprotein_b\n9606.p.0001\t9606.p.0002\n")
    with pytest.raises(DataError, match=r"--min-score 700: .*edges\.tsv has no scores"):
        prepare_proteins(
            tmp_path / "store", Tables([edges], source.proteins), PrepareConfig(min_score=700)
        )


def test_links_of_another_species_than_the_sequences_are_refused_with_what_to_do(tmp_path):
    links, sequences = simulate()
    human = {key: value for key, value in sequences.items() if key.startswith("9606.")}
    source = write_string(tmp_path, links, human)
    with pytest.raises(DataError, match="that has no protein .--taxid selects species"):
        prepare_proteins(tmp_path / "store", source)
    store = prepare_proteins(tmp_path / "store", source, PrepareConfig(taxids=("9606",)))
    assert list(store.group_names) == ["9606"]


def test_links_of_species_that_are_not_kept_are_no_defect_of_a_table(tmp_path):
    links, sequences = simulate()
    edges = tmp_path / "edges.tsv"
    rows = "".join(f"{a}\t{b}\n" for a, b, _ in links)
    edges.write_text(f"protein_a\tprotein_b\n{rows}")
    proteins = tmp_path / "proteins.tsv"
    rows = "".join(f"{key}\t{key.split('.')[0]}\t{text}\n" for key, text in sequences.items())
    proteins.write_text(f"protein_id\tspecies_taxid\tsequence\n{rows}")
    source = Tables([edges], [proteins])
    store = prepare_proteins(tmp_path / "store", source, PrepareConfig(taxids=("9606",)))
    own = {(a, b) for a, b, _ in links if a.startswith("9606.")}
    assert all_links(store) == own
    assert store.manifest["quarantine"][link_blocks.NOT_KEPT]["count"] == len(links) - len(own)


def test_a_score_of_many_digits_is_a_bad_line(tmp_path):
    links, sequences = simulate(species=("9606",))
    a, b, _ = links[0]
    source = write_string(tmp_path, [*links[1:], (a, b, "9" * 30)], sequences)
    store = prepare_proteins(tmp_path / "store", source, PrepareConfig(min_score=1))
    assert store.manifest["quarantine"][link_blocks.NO_SCORE]["count"] == 2


def test_sequences_without_a_taxid_are_skipped(tmp_path):
    links, sequences = simulate(species=("9606",))
    source = write_string(tmp_path, links, sequences | {"P04637": "ACD", "x.P1": "ACD", "7.": "AC"})
    store = prepare_proteins(tmp_path / "store", source)
    facts = store.manifest["quarantine"][NO_SPECIES]
    assert [example["detail"] for example in facts["examples"]] == ["P04637", "x.P1", "7."]


def test_a_file_without_a_column_of_scores_is_named_where_a_least_score_is_wanted(tmp_path):
    links, sequences = simulate(species=("9606",))
    source = write_string(tmp_path, links, sequences, header="protein1 protein2 fusion\n")
    with pytest.raises(DataError, match=r"--min-score 700: .*gz has no scores \(blank-separated"):
        prepare_proteins(tmp_path / "store", source, PrepareConfig(min_score=700))


def test_a_least_score_of_another_scale_is_refused_with_the_right_one(tmp_path):
    source = write_string(tmp_path, *simulate(species=("9606",)))
    with pytest.raises(DataError, match=r"are STRING's, integers up to 1000. Want --min-score 700"):
        prepare_proteins(tmp_path / "store", source, PrepareConfig(min_score=0.7))


def test_files_of_several_species_give_the_store_of_one_file(tmp_path):
    links, sequences = simulate()
    whole = prepare_proteins(tmp_path / "whole", write_string(tmp_path / "all", links, sequences))
    sources = []
    for taxid in ("83333", "9606", "10090"):
        own = [link for link in links if link[0].startswith(f"{taxid}.")]
        rows = {key: value for key, value in sequences.items() if key.startswith(f"{taxid}.")}
        sources.append(write_string(tmp_path / taxid, own, rows))
    edges = [source.edges[0] for source in sources]
    proteins = [source.proteins[0] for source in sources]
    store = prepare_proteins(tmp_path / "store", Tables(edges, proteins))
    assert store.manifest["files"] == whole.manifest["files"]
    # A file given twice: its proteins and links are repetitions, with the line and file they stand in.
    twice = Tables([*edges, edges[0]], [*proteins, proteins[0]])
    again = prepare_proteins(tmp_path / "twice", twice, PrepareConfig(max_bad_share=0.5))
    assert again.manifest["files"] == whole.manifest["files"]
    assert again.manifest["quarantine"]["duplicate id"]["count"] == 40
