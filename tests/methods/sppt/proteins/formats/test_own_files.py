"""Links and proteins in the forms that users have."""

import gzip
import json
import random
import shlex

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raybio.cli.stores import show_store
from raybio.core.errors import DataError
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.proteins.formats.id_rule import IdRule, advise, choose_form
from raybio.methods.sppt.proteins.formats.link_files import check_labels, read_layout
from raybio.methods.sppt.proteins.formats.links import (
    HEADER,
    LINKS_BLOCK_BYTES,
    NO_ID,
    NO_NUMBER,
    NO_PROTEIN,
    NOT_KEPT,
)
from raybio.methods.sppt.proteins.formats.tables import (
    NO_SPECIES,
    OTHER_SPECIES,
    REPEATED,
    Tables,
)
from raybio.store.manifest import WITHOUT_LINK
from tests.methods.sppt.proteins.formats.test_string_db import all_links
from tests.paths import SHARED_DATA

TAXID = "562"
RNG = random.Random(0)
KEYS = [f"P{number:05d}" for number in range(30)]
SEQUENCES = {key: "".join(RNG.choices("ACDEFGHIKLMNPQRSTVWY", k=30)) for key in KEYS}
PAIRS = sorted({tuple(sorted(RNG.sample(KEYS, 2))) for _ in range(80)})
LINKS = [(a, b, RNG.randrange(1, 1000)) for a, b in PAIRS]


def entry(key):
    return f"{key}X_ECOLI"


def table(rows, delimiter="\t", quote=""):
    return "".join(delimiter.join(f"{quote}{field}{quote}" for field in row) + "\n" for row in rows)


def parquet(rows, names):
    sink = pa.BufferOutputStream()
    columns = list(zip(*rows, strict=True))
    pq.write_table(pa.table(dict(zip(names, columns, strict=True))), sink)
    return sink.getvalue().to_pybytes()


def json_lines(rows, names):
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)


def fasta(header):
    return "".join(
        f">{header.format(key=key, entry=entry(key))}\n{sequence[:20]}\n{sequence[20:]}\n"
        for key, sequence in SEQUENCES.items()
    )


PROTEIN_ROWS = [(key, TAXID, sequence) for key, sequence in SEQUENCES.items()]
PROTEIN_NAMES = ("protein_id", "species_taxid", "sequence")
UNIPROT = "sp|{key}|{entry} Protein {key} OS=Escherichia coli OX=562 GN=g PE=1 SV=1"

PROTEINS = {
    "tsv": ("p.tsv", table([PROTEIN_NAMES, *PROTEIN_ROWS]), {}),
    "csv": ("p.csv", table([PROTEIN_NAMES, *PROTEIN_ROWS], ","), {}),
    "quoted csv": ("p.csv", table([PROTEIN_NAMES, *PROTEIN_ROWS], ",", '"'), {}),
    "semicolons": ("p.csv", table([PROTEIN_NAMES, *PROTEIN_ROWS], ";"), {}),
    "gzip": ("p.tsv.gz", gzip.compress(table([PROTEIN_NAMES, *PROTEIN_ROWS]).encode()), {}),
    "Parquet": ("p.parquet", parquet(PROTEIN_ROWS, PROTEIN_NAMES), {}),
    "JSON lines": ("p.jsonl", json_lines(PROTEIN_ROWS, PROTEIN_NAMES), {}),
    "UniProt's table": (
        "uniprot.tsv",
        table(
            [
                ("Entry", "Entry Name", "Organism (ID)", "Sequence"),
                *[(key, entry(key), TAXID, sequence) for key, sequence in SEQUENCES.items()],
            ]
        ),
        {},
    ),
    "no species": (
        "p.tsv",
        table([("id", "sequence"), *SEQUENCES.items()]),
        {"taxids": (TAXID,)},
    ),
    "UniProt": ("p.fasta", fasta(UNIPROT), {}),
    "FASTA, byte order mark": ("p.fasta", b"\xef\xbb\xbf" + fasta(UNIPROT).encode(), {}),
    "UniProt, TrEMBL, gzip": (
        "p.fasta.gz",
        gzip.compress(fasta(UNIPROT.replace("sp|", "tr|")).encode()),
        {},
    ),
    "plain FASTA": ("p.fa", fasta("{key} a protein"), {"taxids": (TAXID,)}),
    "Ensembl": ("p.fa", fasta("{key}.9 pep gene:G"), {"taxids": (TAXID,), "strip_version": True}),
    "STRING": ("p.fa", fasta("562.{key}"), {"strip_prefixes": ("562.",)}),
}

PLAIN = [(a, b) for a, b, _ in LINKS]
NAMES = ("protein_a", "protein_b", "score")
STRING_ROWS = [(f"562.{a}", f"562.{b}", score) for a, b, score in LINKS]
STRING_NAMES = ("protein1", "protein2", "combined_score")

EDGES = {
    "tsv": ("e.tsv", table([NAMES[:2], *PLAIN]), {}),
    "tsv with scores": ("e.tsv", table([NAMES, *LINKS]), {}),
    "tsv without a header": ("e.tsv", table(PLAIN), {}),
    "csv": ("e.csv", table([NAMES, *LINKS], ","), {}),
    "csv without a header": ("e.csv", table(LINKS, ","), {}),
    "quoted csv of a data frame": (
        "e.csv",
        table([("", *NAMES), *[(row, *link) for row, link in enumerate(LINKS)]], ",", '"'),
        {},
    ),
    "comma and blank": ("e.csv", table([NAMES, *LINKS], ", "), {}),
    "semicolons": ("e.csv", table(LINKS, ";"), {}),
    "blanks": ("e.txt", table(PLAIN, " "), {}),
    "blanks with scores": ("e.txt", table(LINKS, " "), {}),
    "a header with other names": ("e.txt", table([("Bait", "Prey"), *PLAIN], " "), {}),
    "scores under other names": ("e.tsv", table([("Bait", "Prey", "PSM"), *LINKS]), {}),
    "names with blanks, an empty last line": (
        "e.csv",
        table([("Protein A", "Protein B", "Combined score"), *LINKS], ",") + "\n",
        {},
    ),
    "gzip": ("e.txt.gz", gzip.compress(table(LINKS, " ").encode()), {}),
    "Windows": ("e.csv", table([NAMES, *LINKS], ",").replace("\n", "\r\n"), {}),
    "byte order mark": ("e.csv", b"\xef\xbb\xbf" + table([NAMES, *LINKS], ",").encode(), {}),
    "byte order mark, no header": ("e.csv", b"\xef\xbb\xbf" + table(LINKS, ",").encode(), {}),
    "Parquet": ("e.parquet", parquet(LINKS, NAMES), {}),
    "JSON lines": ("e.jsonl", json_lines(LINKS, ("source", "target", "weight")), {}),
    "JSON lines, gzip": (
        "e.jsonl.gz",
        gzip.compress(json_lines(LINKS, ("source", "target", "weight")).encode()),
        {},
    ),
    "PSI-MITAB": (
        "e.txt",
        table(
            [
                ("#ID(s) interactor A", "ID(s) interactor B", "Alt. ID(s) interactor A", "x"),
                *[(f"uniprotkb:{a}", f"uniprotkb:{b}", "-", "-") for a, b in PLAIN],
            ]
        ),
        {"strip_prefixes": ("uniprotkb:",)},
    ),
    "STRING": (
        "562.protein.links.v12.0.txt.gz",
        gzip.compress(
            table(
                [STRING_NAMES, *STRING_ROWS, *[(b, a, score) for a, b, score in STRING_ROWS]], " "
            ).encode()
        ),
        {"strip_prefixes": ("562.",)},
    ),
}


def write(folder, name, content):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def prepare(folder, edges, proteins, **settings):
    """Prepare a store of (name, content, settings) of links and of proteins."""
    source = Tables([write(folder, *edges[:2])], [write(folder, *proteins[:2])])
    together = edges[2] | proteins[2] | settings
    prefixes = {*edges[2].get("strip_prefixes", ()), *proteins[2].get("strip_prefixes", ())}
    config = PrepareConfig(**{**together, "strip_prefixes": tuple(sorted(prefixes))})
    return prepare_proteins(folder / "store", source, config)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    store = prepare(folder, EDGES["tsv"], PROTEINS["tsv"])
    assert all_links(store) == set(PLAIN)
    assert sorted(store.keys.to_pylist()) == KEYS[: len(store.keys)]
    return store


@pytest.mark.parametrize("form", EDGES)
def test_every_form_of_links_gives_the_same_content_digest(tmp_path, reference, form):
    assert prepare(tmp_path, EDGES[form], PROTEINS["tsv"]).content_digest == (
        reference.content_digest
    )


@pytest.mark.parametrize("form", PROTEINS)
def test_every_form_of_proteins_gives_the_same_content_digest(tmp_path, reference, form):
    store = prepare(tmp_path, EDGES["csv"], PROTEINS[form])
    assert store.content_digest == reference.content_digest
    assert list(store.group_names) == [TAXID]


def test_the_files_of_string_give_the_same_content_digest(tmp_path, reference):
    store = prepare(tmp_path, EDGES["STRING"], PROTEINS["STRING"])
    assert store.content_digest == reference.content_digest
    # Other content has another one.
    other = prepare(tmp_path / "other", ("e.tsv", table(PLAIN[1:]), {}), PROTEINS["tsv"])
    assert other.content_digest != reference.content_digest


@pytest.mark.parametrize(
    "form",
    ["tsv with scores", "csv without a header", "blanks with scores", "Parquet", "JSON lines"],
)
def test_links_below_the_least_score_are_skipped_in_every_form(tmp_path, form):
    store = prepare(tmp_path, EDGES[form], PROTEINS["tsv"], min_score=400)
    kept = {(a, b) for a, b, score in LINKS if score >= 400}
    assert all_links(store) == kept
    reason = "link with a score below 400 (--min-score)"
    assert store.manifest["quarantine"][reason]["count"] == len(LINKS) - len(kept)


def test_fractional_scores_are_compared_as_numbers(tmp_path):
    rows = [(a, b, f"{score / 1000:.1e}") for a, b, score in LINKS]
    store = prepare(tmp_path, ("e.tsv", table(rows), {}), PROTEINS["tsv"], min_score=0.5)
    assert all_links(store) == {(a, b) for a, b, text in rows if float(text) >= 0.5}


def test_scores_in_the_columns_of_string_may_have_another_scale(tmp_path):
    fractions = [(a, b, score / 1000) for a, b, score in LINKS]
    edges = ("e.tsv", table([STRING_NAMES, *fractions]), {})
    assert all_links(prepare(tmp_path / "every", edges, PROTEINS["tsv"])) == set(PLAIN)
    advice = "Want --min-score 500; if they are others, name the column score"
    with pytest.raises(DataError, match=advice):
        prepare(tmp_path / "refused", edges, PROTEINS["tsv"], min_score=0.5)
    # Floats of JSON that are STRING's integers.
    floats = [(a, b, float(score)) for a, b, score in LINKS]
    edges = ("e.jsonl", json_lines(floats, STRING_NAMES), {})
    strong = prepare(tmp_path / "strong", edges, PROTEINS["tsv"], min_score=400)
    assert all_links(strong) == {(a, b) for a, b, score in LINKS if score >= 400}


LABELS = [(a, b, number % 2) for number, (a, b) in enumerate(PLAIN)]
LABEL_NAMES = ("protein_a", "protein_b", "label")
LABELED = {
    "no header": ("e.tsv", table(LABELS), {}),
    "fractions": ("e.tsv", table([(a, b, f"{label:.1f}") for a, b, label in LABELS]), {}),
    "label": ("e.csv", table([LABEL_NAMES, *LABELS], ","), {}),
    "another name": ("e.csv", table([("Bait", "Prey", "Interacts"), *LABELS], ","), {}),
    "an empty label": ("e.csv", table([LABEL_NAMES, *LABELS, (*PLAIN[0], "")], ","), {}),
    "Parquet": ("e.parquet", parquet(LABELS, LABEL_NAMES), {}),
    "JSON lines": ("e.jsonl", json_lines(LABELS, LABEL_NAMES), {}),
}


@pytest.mark.parametrize("form", LABELED)
def test_labels_are_refused_as_links_and_kept_by_a_least_score(tmp_path, form):
    with pytest.raises(
        DataError, match=r"column .* holds 0 and 1 and nothing else.*--min-score 1 keeps the pairs"
    ):
        prepare(tmp_path, LABELED[form], PROTEINS["tsv"])
    store = prepare(tmp_path, LABELED[form], PROTEINS["tsv"], min_score=1)
    assert all_links(store) == {(a, b) for a, b, label in LABELS if label}


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="needs ../shared/data")
@pytest.mark.parametrize("name", ["ecoli", "yeast"])
def test_the_pairs_of_d_script_are_labels(name):
    path = SHARED_DATA / "ppi_dscript" / f"{name}_test.tsv.gz"
    with pytest.raises(DataError, match="column 3 holds 0 and 1 and nothing else"):
        check_labels(read_layout(path), block_bytes=LINKS_BLOCK_BYTES)


def test_labels_true_and_false_are_refused_with_the_numbers_to_write(tmp_path):
    rows = [(a, b, bool(label)) for a, b, label in LABELS]
    edges = ("e.jsonl", json_lines(rows, LABEL_NAMES), {})
    with pytest.raises(DataError, match=r"holds false and true .*Write 1 and 0, and give --min-sc"):
        prepare(tmp_path, edges, PROTEINS["tsv"])


@pytest.mark.parametrize("rest", [["1"], ["0"], ["0", "1", "0.5"], ["0", "1", "2"], ["yes", "no"]])
def test_a_column_of_other_values_than_both_labels_is_no_column_of_labels(tmp_path, rest):
    rows = [(a, b, rest[number % len(rest)]) for number, (a, b) in enumerate(PLAIN)]
    edges = ("e.tsv", table([LABEL_NAMES, *rows]), {})
    assert all_links(prepare(tmp_path, edges, PROTEINS["tsv"])) == set(PLAIN)


def test_a_score_after_the_first_block_shows_that_there_are_no_labels(tmp_path):
    rows = [*LABELS, (*PLAIN[0], "0.5")]
    path = write(tmp_path, "e.tsv", table(rows))
    check_labels(read_layout(path), block_bytes=200)
    path.write_text(table(rows[:-1]))
    with pytest.raises(DataError, match="column 3 holds 0 and 1"):
        check_labels(read_layout(path), block_bytes=200)


@pytest.mark.parametrize("others", [[], [("unknown", "P2", "0.5"), ("P1", "P1", "0.5")]])
def test_a_least_score_above_all_scores_is_refused_with_their_range(tmp_path, others):
    rows = [(a, b, f"{score / 1000:.3f}") for a, b, score in LINKS]
    links = ("e.tsv", table(rows + others), {})
    scores = [float(text) for _, _, text in rows + others]
    with pytest.raises(DataError) as refused:
        prepare(tmp_path, links, PROTEINS["tsv"], min_score=700)
    text = str(refused.value)
    assert f"the scores run from {min(scores):g} to {max(scores):g}" in text
    assert text.endswith(f"Want --min-score {max(scores):g} at most")


def test_proteins_without_a_link_are_counted_and_shown(tmp_path, capsys):
    alone = [("ALONE1", TAXID, "MKTAYIAK"), ("ALONE2", TAXID, "MKTAYIAR")]
    proteins = ("p.tsv", table([PROTEIN_NAMES, *PROTEIN_ROWS, *alone]), {})
    store = prepare(tmp_path, EDGES["tsv"], proteins)
    num_without = len(PROTEIN_ROWS) + len(alone) - len(store.keys)
    assert store.manifest[WITHOUT_LINK] == num_without
    show_store(store, 0.0)
    line = next(
        line for line in capsys.readouterr().out.splitlines() if "proteins without a link" in line
    )
    assert f" {num_without} " in line


def test_fasta_as_links_is_named(tmp_path):
    links = ("e.fasta", fasta(UNIPROT), {})
    with pytest.raises(DataError, match="e.fasta: is FASTA, as of --proteins; want a table of lin"):
        prepare(tmp_path, links, PROTEINS["tsv"])


TAB_LINKS = table([NAMES[:2], *PLAIN]).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("e.tsv", gzip.compress(TAB_LINKS)),
        ("E.TSV.GZ", gzip.compress(TAB_LINKS)),
        ("e.tsv.bgz", gzip.compress(TAB_LINKS[:500]) + gzip.compress(TAB_LINKS[500:])),
        ("zero padding.tsv.gz", gzip.compress(TAB_LINKS) + bytes(512)),
        ("plain.tsv.gz", TAB_LINKS),
    ],
    # Compressed bytes have the time in them, and all processes must give a test the same name.
    ids=["e.tsv", "E.TSV.GZ", "e.tsv.bgz", "zero padding", "plain"],
)
def test_gzip_is_recognized_by_its_content_whatever_its_name_is(tmp_path, reference, name, content):
    store = prepare(tmp_path, (name, content, {}), PROTEINS["tsv"])
    assert store.content_digest == reference.content_digest


@pytest.mark.parametrize("is_protein_bad", [False, True])
def test_a_file_with_a_header_alone_is_refused_for_having_no_links(tmp_path, is_protein_bad):
    rows = [PROTEIN_NAMES, *PROTEIN_ROWS]
    if is_protein_bad:
        rows.append(("bad", TAXID, "MK*"))
    proteins = ("p.tsv", table(rows), {"max_bad_share": 0.5})
    with pytest.raises(DataError, match=r"e.tsv: has a header and no links, want a link a line"):
        prepare(tmp_path, ("e.tsv", "protein1\tprotein2\n", {}), proteins)


@pytest.mark.parametrize(
    ("links", "name"),
    [
        (PLAIN, "accession"),
        ([(entry(a), entry(b)) for a, b in PLAIN], "entry name"),
        ([(f"sp|{a}|{entry(a)}", f"sp|{b}|{entry(b)}") for a, b in PLAIN], "first word"),
    ],
)
def test_ids_of_uniprot_are_read_in_the_form_of_the_links_and_the_table_says_so(
    tmp_path, links, name
):
    store = prepare(tmp_path, ("e.tsv", table(links), {}), PROTEINS["UniProt"])
    assert all_links(store) == set(links)
    remarks = store.manifest["read_as"]
    assert remarks[0] == "e.tsv: tab-separated, columns 1 and 2, no header"
    assert remarks[1].startswith(f"ids: {name} of UniProt's headers (of {len(KEYS)} ids")
    assert f"{name}: {len(KEYS)}" in remarks[1]


def test_the_form_with_most_ids_is_chosen_and_of_equal_ones_the_first():
    proteins = pa.array(["sp|P1|A_X", "sp|P2|B_X", "plain"])
    for ids, form in (
        (["P1", "B_X", "A_X"], "entry name"),
        (["P1", "B_X"], "accession"),
        (["plain", "nobody"], "first word"),
    ):
        assert choose_form(pa.array(ids), proteins, IdRule()).rule.form == form
    # Ids of links may be UniProt's, too.
    choice = choose_form(pa.array(["sp|P1|A_X", "tr|P3|C_X"]), pa.array(["P1", "P3"]), IdRule())
    assert choice.rule.form == "accession"
    assert choice.rule(pa.array(["sp|P1|A_X", "x|y", "P3", "sp|P1"])).to_pylist() == (
        ["P1", "x|y", "P3", "sp|P1"]
    )


def test_prefixes_and_versions_are_removed_where_something_is_left():
    rule = IdRule(strip_prefixes=("562.", "562.a."), strip_version=True)
    ids = pa.array(["562.b1.2", "562.", "562.a.c", "b1", ".1", "x.y"])
    assert rule(ids).to_pylist() == ["b1", "562.", "c", "b1", ".1", "x.y"]


@pytest.mark.parametrize(
    ("links", "proteins", "advice"),
    [
        ("562.{}", "{}", "'562.P00000', proteins such as 'P00000': --strip-prefix 562. makes"),
        ("{}", "562.{}", "'P00000', proteins such as '562.P00000': --strip-prefix 562. makes"),
        ("uniprotkb:{}", "{}", "--strip-prefix uniprotkb: makes"),
        ("{}", "{}.9", "'P00000', proteins such as 'P00000.9': --strip-version makes"),
        ("{}.1", "{}.9", "--strip-version makes"),
        ("562.{}.1", "{}", "--strip-prefix 562. --strip-version makes"),
        ("{}", "562.{}.1", "--strip-prefix 562. --strip-version makes"),
        ("x|{}", "{}", "--strip-prefix 'x|' makes"),
        ("562.{}", "sp|{}|Q{}_ECOLI OX=562", "proteins such as 'P00000': --strip-prefix 562."),
        ("562.Q{}_ECOLI", "sp|{}|Q{}_ECOLI OX=562", "'QP00000_ECOLI': --strip-prefix 562."),
        ("gene {}", "{}", "no prefix or version makes them equal"),
        ("TP-{}", "A-{}x", "no prefix or version makes them equal"),
    ],
)
def test_ids_that_do_not_match_are_refused_with_both_and_what_would_make_them_fit(
    tmp_path, links, proteins, advice
):
    rows = [(links.format(a), links.format(b)) for a, b in PLAIN]
    text = "".join(f">{proteins.format(key, key)}\n{SEQUENCES[key]}\n" for key in KEYS)
    files = (("e.tsv", table(rows), {}), ("p.fa", text, {"taxids": (TAXID,)}))
    with pytest.raises(DataError) as caught:
        prepare(tmp_path, *files)
    assert advice in str(caught.value)
    assert NO_PROTEIN in str(caught.value)
    if "--strip" in advice:
        # What the message says makes a store of all links.
        words = shlex.split(advice[advice.index("--strip") :])
        settings = {"strip_version": "--strip-version" in words}
        if "--strip-prefix" in words:
            settings["strip_prefixes"] = (words[words.index("--strip-prefix") + 1],)
        with_options = (*files[0][:2], settings)
        assert len(all_links(prepare(tmp_path, with_options, files[1]))) == len(PLAIN)


def test_letters_of_another_case_are_named():
    assert "writing both in the same case makes 1 of 1" in advise(["p1"], ["P1", "P2"])


def test_isoforms_of_known_accessions_are_named():
    advice = advise(["nobody", "Q12329-2", "A0A023GPI8-12"], ["P00001", "Q12329", "A0A023GPI8"])
    assert advice == (
        "Links have ids such as 'Q12329-2', proteins such as 'Q12329': writing isoforms as their "
        "accession, without -NUMBER, makes 2 of 3 such ids fit"
    )
    # No isoforms: ids of another form, and an accession that is unknown.
    assert "no prefix" in advise(["YAL001-2", "P00002-1"], ["YAL001", "P00001"])


def test_columns_of_other_names_are_refused_with_the_names_to_give_them(tmp_path):
    rows = [("P00000", "P00007", 0.5, "123")]
    names = ("Interactor 1", "Interactor 2", "Confidence Score", "PubMed")
    edges = ("e.csv", table([names, *rows], ","), {})
    with pytest.raises(
        DataError,
        match=r"columns 'Interactor 1', .*'PubMed'; .*Rename the two columns of ids protein_a and "
        "protein_b; other columns may stay",
    ):
        prepare(tmp_path, edges, PROTEINS["plain FASTA"])
    named = table([("protein_a", "protein_b", *names[2:]), *rows], ",")
    with pytest.raises(
        DataError,
        match=r"--min-score 0.5: .*e.csv has no scores .*named combined_score, score, "
        r"weight, confidence or label: rename one of its others \(Confidence Score, PubMed\)",
    ):
        prepare(tmp_path, ("e.csv", named, {"min_score": 0.5}), PROTEINS["plain FASTA"])


def test_four_columns_without_a_header_are_refused_with_the_advice_to_name_them(tmp_path):
    path = tmp_path / "e.csv"
    path.write_text("P04637,Q00987,0.9,x\nP04637,P38398,0.4,y\n")
    with pytest.raises(
        DataError, match="'x'; .*Give the first line names: protein_a and protein_b for the two"
    ):
        read_layout(path)
    path.write_text("protein_a,protein_b,score,note\n" + path.read_text())
    assert read_layout(path).columns == ("protein_a", "protein_b", "score")


def test_a_prefix_given_without_its_separator_is_advised_with_it(tmp_path):
    rows = [(f"562.{a}", f"562.{b}") for a, b in PLAIN]
    edges = ("e.tsv", table(rows), {"strip_prefixes": ("562",)})
    with pytest.raises(DataError, match=r"such as '\.P00000'.*: --strip-prefix 562\. makes"):
        prepare(tmp_path, edges, PROTEINS["plain FASTA"])


def test_a_few_links_without_a_protein_are_skipped_with_advice(tmp_path):
    rows = [*PLAIN, ("562.P00000", "562.P00007")]
    store = prepare(tmp_path, ("e.tsv", table(rows), {}), PROTEINS["tsv"])
    assert store.manifest["quarantine"][NO_PROTEIN]["count"] == 1
    assert store.manifest["read_as"][-1] == (
        "skipped links: Links have ids such as '562.P00000', proteins such as 'P00000': "
        "--strip-prefix 562. makes 2 of 2 such ids fit"
    )


def test_a_repeated_id_is_no_protein_that_its_links_lack(tmp_path):
    rows = [PROTEIN_NAMES, *PROTEIN_ROWS, PROTEIN_ROWS[0]]
    edges = ("e.tsv", table([*PLAIN, ("562.P00000", "562.P00007")]), {})
    store = prepare(tmp_path, edges, ("p.tsv", table(rows), {}))
    assert store.manifest["quarantine"]["duplicate id"]["count"] == 1
    assert store.manifest["read_as"][-1].endswith("--strip-prefix 562. makes 2 of 2 such ids fit")


def spaced(rows):
    return [tuple(f" {field} \u3000" for field in row) for row in rows]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("e.tsv", table([NAMES, *spaced(LINKS)])),
        ("e.txt", table(spaced(PLAIN))),
        ("e.jsonl", json_lines(spaced(LINKS), NAMES)),
    ],
)
def test_white_space_around_ids_of_links_is_trimmed(tmp_path, reference, name, content):
    store = prepare(tmp_path, (name, content, {}), PROTEINS["tsv"])
    assert store.content_digest == reference.content_digest


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.tsv", table([PROTEIN_NAMES, *spaced(PROTEIN_ROWS)])),
        ("p.jsonl", json_lines(spaced(PROTEIN_ROWS), PROTEIN_NAMES)),
    ],
)
def test_white_space_in_tables_of_proteins_is_trimmed(tmp_path, reference, name, content):
    store = prepare(tmp_path, EDGES["tsv"], (name, content, {}))
    assert store.content_digest == reference.content_digest


@pytest.mark.parametrize("delimiter", ["\t", " "])
def test_ids_in_quotes_are_named_as_the_mistake(tmp_path, delimiter):
    """R's write.table quotes texts by default."""
    edges = ("e.txt", table([NAMES[:2], *PLAIN], delimiter, '"'), {})
    with pytest.raises(
        DataError, match=r'in quotes, such as "p.*": where .* \(in R: quote=FALSE\), or with commas'
    ):
        prepare(tmp_path, edges, PROTEINS["tsv"])


def test_an_id_of_two_species_has_its_own_reason_with_advice(tmp_path):
    others = [(key, "9606", SEQUENCES[key]) for key in KEYS[:3]]
    rows = [PROTEIN_NAMES, *PROTEIN_ROWS, *others, PROTEIN_ROWS[0]]
    edges = ("e.tsv", table(PLAIN), {})
    store = prepare(
        tmp_path / "some", edges, ("p.tsv", table(rows), {}), max_bad_share=0.2, heldout_share=0
    )
    quarantine = store.manifest["quarantine"]
    assert {reason: facts["count"] for reason, facts in quarantine.items()} == {
        OTHER_SPECIES: 3,
        REPEATED: 1,
    }
    assert quarantine[OTHER_SPECIES]["examples"][0] == {
        "file": "p.tsv",
        "line": len(KEYS) + 2,
        "detail": KEYS[0],
    }
    assert "--taxid" in OTHER_SPECIES and "9606.name" in OTHER_SPECIES
    proteins = ("p.tsv", table(rows), {"taxids": (TAXID,)})
    one = prepare(tmp_path / "one", edges, proteins, heldout_share=0)
    assert {reason: facts["count"] for reason, facts in one.manifest["quarantine"].items()} == {
        REPEATED: 1
    }


def test_advice_on_ids_says_that_proteins_were_skipped(tmp_path):
    rows = [*PROTEIN_ROWS, ("P99999", TAXID, "ACD*")]
    proteins = ("p.tsv", table([PROTEIN_NAMES, *rows]), {})
    store = prepare(tmp_path, ("e.tsv", table([*PLAIN, ("P99999", "P00000")]), {}), proteins)
    assert store.manifest["read_as"][-1].endswith("; skipped proteins (1) count as unknown")


def test_a_single_taxid_does_not_hide_ids_that_do_not_match(tmp_path):
    """Only where proteins of other species were skipped may an unknown id be one of them."""
    rows = [(f"x{a}", f"x{b}") for a, b in PLAIN]
    with pytest.raises(DataError, match="no prefix or version makes them equal"):
        prepare(tmp_path, ("e.tsv", table(rows), {}), PROTEINS["plain FASTA"])
    other = PROTEINS["UniProt"][1] + ">sp|Q1|Q1_HUMAN Other OX=9606\nACD\n"
    settings = {"taxids": (TAXID,)}
    store = prepare(
        tmp_path, ("e.tsv", table([*PLAIN, ("Q1", "Q2")]), {}), ("p.fa", other, settings)
    )
    assert all_links(store) == set(PLAIN)
    assert NO_PROTEIN not in store.manifest["quarantine"]


@pytest.mark.parametrize("other", ["sp|Q1|Q1_HUMAN Other OX=9606", "9606.Q1 OX=9606"])
def test_a_taxid_excludes_links_of_skipped_proteins_alone(tmp_path, other):
    proteins = ("p.fa", PROTEINS["UniProt"][1] + f">{other}\nACD\n", {"taxids": (TAXID,)})
    skipped_id = "9606.Q1" if other.startswith("9606") else "Q1"
    links = [*PLAIN, ("P00000", "unknown"), ("1.x", "P00001"), (skipped_id, "P00000")]
    store = prepare(tmp_path / "few", ("e.tsv", table(links), {}), proteins)
    counts = {reason: facts["count"] for reason, facts in store.manifest["quarantine"].items()}
    assert counts == {NO_PROTEIN: 2, NOT_KEPT: 1}
    # Ids that do not match are none of the skipped protein's.
    rows = [(f"x{a}", f"x{b}") for a, b in PLAIN]
    with pytest.raises(DataError, match="no prefix or version makes them equal"):
        prepare(tmp_path / "all", ("e.tsv", table(rows), {}), proteins)


def test_links_of_skipped_proteins_are_counted_where_two_proteins_are_kept(tmp_path):
    proteins = "".join(
        f">{key} x OX={taxid}\nACD\n" for key, taxid in [("A", 1), ("B", 1), ("C", 2)]
    )
    store = prepare(
        tmp_path,
        ("e.tsv", table([("A", "B"), ("C", "A"), ("C", "C")]), {}),
        ("p.fa", proteins, {"taxids": ("1",)}),
        heldout_share=0,
    )
    assert store.manifest["quarantine"][NOT_KEPT]["count"] == 2
    assert all_links(store) == {("A", "B")}


def test_the_species_is_that_of_the_header_then_of_the_id_then_the_only_one(tmp_path):
    pairs = [("A", "B"), ("9606.C", "9606.D"), ("E", "F")]
    text = (
        ">sp|A|A_X x OX=562\nACD\n>sp|B|B_X x OX=562 GN=OX=9\nACE\n>9606.C\nACF\n"
        ">9606.D some OX=96x06\nACG\n>E\nACH\n>F\nACI\n"
    )
    files = (("e.tsv", table(pairs), {}), ("p.fa", text, {}))
    store = prepare(tmp_path, *files, heldout_share=0, max_bad_share=1)
    assert list(store.group_names) == ["562", "9606"]
    assert store.manifest["quarantine"][NO_SPECIES]["count"] == 2
    store = prepare(tmp_path / "one", *files, heldout_share=0, max_bad_share=1, taxids=("562",))
    assert store.keys.to_pylist() == ["A", "B", "E", "F"]
    assert list(store.group_names) == ["562"]


def test_bad_lines_have_reasons_in_every_form(tmp_path):
    odd = [("P00000", "", "1"), ("NaN", "P00001", "1"), ("P00002", "P00003", "high")]
    name, text, _ = EDGES["csv without a header"]
    line = len(LINKS) + 1
    for form, content in (
        (name, text + table(odd, ",")),
        ("e.jsonl", json_lines([*LINKS, *odd], NAMES)),
    ):
        store = prepare(tmp_path / form, (form, content, {}), PROTEINS["tsv"], min_score=1)
        found = {
            reason: [(example["line"], example["detail"]) for example in facts["examples"]]
            for reason, facts in store.manifest["quarantine"].items()
        }
        assert found == {
            NO_ID: [(line, "P00000 "), (line + 1, "NaN P00001")],
            NO_NUMBER: [(line + 2, "P00002 P00003 high")],
        }


def test_empty_lines_are_no_records(tmp_path):
    store = prepare(tmp_path, ("e.tsv", table(PLAIN) + "\n\n", {}), PROTEINS["tsv"])
    assert not store.manifest["quarantine"]


def test_a_first_line_that_names_no_protein_is_a_header_and_is_shown(tmp_path):
    store = prepare(tmp_path, EDGES["a header with other names"], PROTEINS["tsv"])
    facts = store.manifest["quarantine"][HEADER]
    assert facts["examples"] == [{"detail": "Bait Prey", "file": "e.txt", "line": 1}]
    assert facts["count"] == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("e.tsv", "", "is empty, want a table of links: two columns of ids"),
        ("e.tsv", "\nA B\n", "begins with an empty line"),
        ("e.txt", "P1\nP2\n", "'P1' has one column"),
        ("e.txt", "P1   P2\n", "has the columns 'P1', '', '', 'P2'"),
        ("e.tsv", "A\tpp\tB\nC\tpp\tD\n", "the third column is 'B', want a table of links"),
        ("e.csv", "w,x,y,z\n1,2,3,4\n", "has the columns 'w', 'x', 'y', 'z'; want a table"),
        ("e.jsonl", '{"x": 1}\n', "has the columns x; want two that are named protein_a and"),
        ("e.parquet", b"PAR1", "cannot be read as Parquet"),
    ],
)
def test_a_file_that_holds_no_links_is_refused_with_what_is_wanted(
    tmp_path, name, content, message
):
    with pytest.raises(DataError) as caught:
        read_layout(write(tmp_path, name, content))
    assert message in str(caught.value)
