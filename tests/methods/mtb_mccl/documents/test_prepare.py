import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from raybio.cli import prepare
from raybio.core.errors import ConfigError, DataError
from raybio.methods.mtb_mccl.documents.demo import (
    SIMULATED_DOCUMENTS,
    DocumentsConfig,
    write_documents,
)
from raybio.methods.mtb_mccl.documents.entities import OTHER_TEXT, type_rank
from raybio.methods.mtb_mccl.documents.formats import read_documents
from raybio.methods.mtb_mccl.documents.prepare import prepare_documents, prepare_unlabeled
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.documents.writer import DUPLICATE, HELD_OUT, TESTED
from raybio.store.quarantine import Quarantine
from raybio.store.store import open_store
from tests.methods.mtb_mccl.documents.test_formats import DOCRED, real

SMALL = DocumentsConfig(num_entities=8, num_facts=12, num_train=12, num_dev=3, num_test=4)


def pubtator(path, *documents):
    """Documents (id, words, relations); a word "BRAF:Gene:673" is a mention."""
    lines = []
    for document_id, words, relations in documents:
        text, mentions = "", []
        for word in words.split():
            name, *facts = word.split(":")
            start = len(text) + bool(text)
            text = f"{text} {name}".strip()
            mentions += (
                ["\t".join([document_id, str(start), str(start + len(name)), name, *facts])]
                if facts
                else []
            )
        lines += [f"{document_id}|t|{text}", *mentions]
        lines += ["\t".join([document_id, *relation.split()]) for relation in relations]
        lines.append("")
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


TRAIN = [
    (
        "1",
        "BRAF:Gene:673 in Tumor:Disease:D1 by ARS:Chemical:C1 and braf:Gene:673",
        ["Bind C1 673", "Cause 673 D1"],
    ),
    ("2", "X:Zeta:9 Tumor:Disease:D1 and TP53:Gene:7157,7158 alone", ["Bind D1 7157"]),
    ("3", "nothing here", []),
]
DEV = [("9", "KRAS:Gene:1 and Tumor:Disease:D1 and tumour:Disease", ["Bind KRAS D1", "Cause 1 D1"])]


def pairs(arrays):
    return list(zip(*(array.tolist() for array in arrays), strict=True))


def test_a_store_gives_back_what_the_files_hold(tmp_path):
    train, dev = pubtator(tmp_path / "train", *TRAIN), pubtator(tmp_path / "dev", *DEV)
    store = prepare_documents(
        tmp_path / "store", [train], [dev], min_type_pair_relations=1, max_bad_share=0.5
    )
    assert [store.split_rows(name).tolist() for name in ("train", "dev", "test")] == [
        [0, 1, 2],
        [3],
        [],
    ]
    assert [store.document_id(row) for row in range(4)] == ["1", "2", "3", "9"]
    assert store.text(0) == "BRAF in Tumor by ARS and braf"
    assert store.entity_types == ("Gene", "Disease", "Chemical", "Zeta")
    assert store.relation_names == ("NA", "Bind", "Cause")
    assert pairs(store.mentions(0)) == [(0, 4), (8, 13), (17, 20), (25, 29)]
    assert pairs(store.links(0)) == [(0, 0), (1, 1), (2, 2), (3, 0)]
    assert pairs(store.links(1)) == [(0, 0), (1, 1), (2, 2), (2, 3)]
    assert (store.types(0).tolist(), store.types(1).tolist()) == ([0, 1, 2], [3, 1, 0, 0])
    assert pairs(store.relations(0)) == [(0, 2, 1), (0, 1, 2)]
    assert pairs(store.relations(1)) == [(2, 1, 1)]
    keys = store.entity_keys.to_pylist()
    assert keys == sorted(keys)
    assert [keys[key] for key in store.keys(3)] == ["Gene:1", "Disease:D1", "Disease:~tumour"]
    assert store.documents_of(keys.index("Disease:D1")).tolist() == [0, 1, 3]
    assert np.diff(store.key_indptr)[keys.index("Gene:673")] == 1
    assert (store.is_directed, store.is_multi_label) == (False, False)
    assert store.count_by_word["and"] == 2
    empty = [
        *store.mentions(2),
        *store.links(2),
        store.types(2),
        *store.relations(2),
        *store.candidates(2),
    ]
    assert all(len(array) == 0 and array.dtype == np.int64 for array in empty)
    assert open_store(tmp_path / "store", DocumentStore, verify=True) is store


@pytest.mark.first_tier("biored/Test.PubTator.gz", "pubtator_ner/tmVar3_Test.PubTator.gz")
@pytest.mark.parametrize(
    "name",
    [
        "biored/Test.PubTator.gz",
        "biored/Test.BioC.JSON.gz",
        "biored/Train.BioC.XML.gz",
        "pubtator_ner/tmVar3_Test.PubTator.gz",
    ],
)
def test_unlabeled_documents_keep_the_ids_of_real_files(tmp_path, name):
    path = real(name)
    store = prepare_unlabeled(tmp_path / "store", [path])
    ids = store.entity_keys.to_pylist()
    content = gzip.decompress(path.read_bytes()).decode()
    assert len(ids) > 500
    assert [one for one in ids if one not in content] == []


def test_vertices_keep_their_numbers_in_unlabeled_documents(tmp_path):
    path = real("re_docred/dev_revised.json.gz")
    store = prepare_unlabeled(tmp_path / "store", [path])
    num_vertices = {
        one["title"]: len(one["vertexSet"])
        for one in json.loads(gzip.decompress(path.read_bytes()))
    }
    ids = store.entity_keys.to_pylist()
    for row in range(store.num_rows):
        vertices = sorted(int(ids[key]) for key in store.keys(row))
        assert vertices == list(range(num_vertices[store.document_id(row)]))


def test_candidates_are_the_pairs_of_types_that_training_relations_have(tmp_path):
    train, dev = pubtator(tmp_path / "train", *TRAIN), pubtator(tmp_path / "dev", *DEV)
    store = prepare_documents(
        tmp_path / "one", [train], [dev], min_type_pair_relations=1, max_bad_share=0.5
    )
    assert store.type_pairs == {(0, 1), (0, 2)}
    assert pairs(store.candidates(0)) == [(0, 1), (0, 2)]
    assert pairs(store.candidates(1)) == [(2, 1), (3, 1)]
    assert pairs(store.candidates(3)) == [(0, 1), (0, 2)]
    store = prepare_documents(tmp_path / "two", [train], [dev], max_bad_share=0.5)
    assert store.type_pairs == {(0, 1)}
    assert store.manifest["counts"]["relations_outside_candidates"] == 1
    with pytest.raises(
        DataError, match=r"no pair of types has 3 training relations.*--min-type-pair-relations"
    ):
        prepare_documents(tmp_path / "three", [train], min_type_pair_relations=3)


def test_without_relations_each_unordered_pair_is_a_candidate_once(tmp_path):
    documents = [(number, words, []) for number, words, _ in TRAIN]
    store = prepare_documents(tmp_path / "store", [pubtator(tmp_path / "train", *documents)])
    for row in range(3):
        types, found = store.types(row), pairs(store.candidates(row))
        expected = itertools.combinations(range(len(types)), 2)
        assert sorted(map(sorted, found)) == [list(pair) for pair in expected]
        assert all((types[head], head) < (types[tail], tail) for head, tail in found)
    assert store.relation_names == ("NA",)


def test_docred_is_directed_and_its_relations_have_names(tmp_path):
    document = {**DOCRED[0], "labels": [{"h": 1, "t": 0, "r": "P17"}, {"h": 1, "t": 0, "r": "P6"}]}
    (tmp_path / "train.json").write_text(json.dumps([document]))
    (tmp_path / "names.json").write_text(
        json.dumps({"P6": "head", "P17": "country", "P9": "unused"})
    )
    store = prepare_documents(
        tmp_path / "s", [tmp_path / "train.json"], relation_names=tmp_path / "names.json"
    )
    assert store.relation_names == ("NA", "head", "country", "unused")
    assert pairs(store.relations(0)) == [(0, 1, 2), (0, 1, 1)]
    assert pairs(store.candidates(0)) == list(itertools.permutations(range(3), 2))
    assert (store.is_directed, store.is_multi_label, store.type_pairs) == (
        True,
        True,
        {(0, 0), (0, 1), (1, 0), (1, 1)},
    )
    assert [store.entity_keys[int(key)].as_py() for key in store.keys(0)] == [
        "LOC:~bern",
        "LOC:~switzer land",
        "NUM:~55 %",
    ]
    (tmp_path / "names.json").write_text(json.dumps({"P6": "head"}))
    with pytest.raises(DataError, match="relation 'P17' is none of those with names: P6"):
        prepare_documents(
            tmp_path / "t", [tmp_path / "train.json"], relation_names=tmp_path / "names.json"
        )
    for names, message in (
        ({"P6": "a", "P17": "a"}, "two relations are named 'a'"),
        ({"P6": "NA"}, "named 'NA'"),
    ):
        (tmp_path / "names.json").write_text(json.dumps(names))
        with pytest.raises(DataError, match=message):
            prepare_documents(
                tmp_path / "t", [tmp_path / "train.json"], relation_names=tmp_path / "names.json"
            )
    with pytest.raises(DataError, match="Prepare a store of each"):
        prepare_documents(
            tmp_path / "t", [tmp_path / "train.json", pubtator(tmp_path / "train", *TRAIN)]
        )


def test_what_is_tested_on_is_never_trained_on_and_of_copies_the_fullest_is_kept(tmp_path):
    poorer = [
        ("1", "BRAF:Gene:673 in Tumor", []),
        ("2", "A:Gene:1 B:Gene:2 C:Gene:3 D:Gene:4", []),
        ("4", "A:Gene:1", []),
    ]
    train = [pubtator(tmp_path / "a", *TRAIN), pubtator(tmp_path / "b", *poorer)]
    dev = pubtator(tmp_path / "dev", ("3", "dev", []))
    exclude = pubtator(tmp_path / "x", ("4", "else", []))
    store = prepare_documents(
        tmp_path / "store", train, [dev], exclude=[exclude], min_type_pair_relations=1
    )
    assert [store.document_id(row) for row in range(store.num_rows)] == ["1", "2", "3"]
    assert [store.text(row) for row in (1, 2)] == ["A B C D", "dev"]
    quarantine = store.manifest["quarantine"]
    assert {reason: quarantine[reason]["count"] for reason in (HELD_OUT, DUPLICATE)} == {
        HELD_OUT: 2,
        DUPLICATE: 2,
    }
    assert quarantine[HELD_OUT]["examples"][1] == {"file": "b", "line": 10, "detail": "4"}
    assert "Gene:7157" not in store.entity_keys.to_pylist()
    with pytest.raises(DataError, match=r"no training document is left.*held out"):
        prepare_documents(tmp_path / "none", [dev], [dev])


def test_what_is_tested_on_chooses_nothing(tmp_path):
    train = pubtator(tmp_path / "a", *TRAIN)
    dev = pubtator(tmp_path / "dev", *DEV, ("8", "only dev", []))
    test = pubtator(tmp_path / "test", *DEV)
    store = prepare_documents(
        tmp_path / "store", [train], [dev], [test], min_type_pair_relations=1, max_bad_share=0.5
    )
    ids = {
        split: [store.document_id(row) for row in store.split_rows(split)]
        for split in ("dev", "test")
    }
    assert ids == {"dev": ["8"], "test": ["9"]}
    assert store.manifest["quarantine"][TESTED]["count"] == 1
    assert store.manifest["leakage"]["dev_documents_in_test"] == 0
    with pytest.raises(DataError, match="all validation documents are test documents, too"):
        prepare_documents(tmp_path / "same", [train], [test], [test], max_bad_share=0.5)


def test_too_much_that_is_bad_and_files_that_are_not_there_are_refused(tmp_path):
    path = tmp_path / "bad"
    path.write_text("1|t|BRAF\n1\t0\t3\tBRAF\tGene\t1\n")
    with pytest.raises(DataError, match=f"1 of 1 mention records are bad.*{OTHER_TEXT}"):
        prepare_documents(tmp_path / "store", [path])
    with pytest.raises(DataError, match="absent: does not exist"):
        prepare_documents(tmp_path / "store", [path], exclude=[tmp_path / "absent"])
    assert not (tmp_path / "store").exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["bad"]


def test_the_command_prepares_and_shows_what_was_set_aside(tmp_path):
    pubtator(tmp_path / "a.gz", *TRAIN)
    pubtator(tmp_path / "b.gz", TRAIN[0])
    command = ["documents", "--input", str(tmp_path / "?.gz"), "--out", str(tmp_path / "store")]
    command += [
        "--dev",
        str(pubtator(tmp_path / "dev", ("3", "dev", []))),
        "--min-type-pair-relations",
        "1",
    ]
    result = CliRunner().invoke(prepare.app, command, catch_exceptions=False)
    assert result.exit_code == 0
    assert "skipped: duplicate document" in " ".join(result.output.split())
    assert (
        open_store(tmp_path / "store", DocumentStore, verify=True).manifest["counts"][
            "train_documents"
        ]
        == 2
    )
    result = CliRunner().invoke(prepare.app, [*command, "--force", "--test", str(tmp_path / "no*")])
    assert isinstance(result.exception, ConfigError)
    assert "--test" in str(result.exception)


def test_the_embedded_corpus_states_its_relations_in_words_and_its_pairs_recur(tmp_path):
    store = SIMULATED_DOCUMENTS.prepare(tmp_path)
    counts, facts = store.manifest["counts"], {}
    assert [counts[f"{split}_documents"] for split in ("train", "dev", "test")] == [1000, 100, 150]
    assert (counts["relation_names"], len(store.entity_types), store.manifest["quarantine"]) == (
        5,
        3,
        {},
    )
    assert 3.5 < counts["entities"] / 1250 < 4.5
    assert 40 < np.mean([len(store.text(row).split()) for row in range(1250)]) < 50
    in_documents = {}
    for row in range(store.num_rows):
        key, relations = store.keys(row), pairs(store.relations(row))
        for head, tail, label in relations:
            facts.setdefault((key[head], key[tail]), set()).add(label)
            in_documents.setdefault((key[head], key[tail]), set()).add(row)
        assert {(head, tail) for head, tail, _ in relations} <= set(pairs(store.candidates(row)))
    assert all(len(labels) == 1 for labels in facts.values())
    assert np.median([len(rows) for rows in in_documents.values()]) >= 3
    assert SIMULATED_DOCUMENTS.prepare(tmp_path) is store


def test_equal_settings_give_equal_bytes_and_another_seed_another_world(tmp_path):
    first, same = write_documents(tmp_path / "a", SMALL), write_documents(tmp_path / "b", SMALL)
    other = write_documents(tmp_path / "c", SMALL.model_copy(update={"seed": 1}))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in same]
    assert first[0].read_bytes() != other[0].read_bytes()
    quarantine = Quarantine()
    assert [len(list(read_documents(path, quarantine))) for path in first] == [12, 3, 4]
    assert not quarantine.count_by_reason


def test_biored_has_the_eight_pairs_of_types_of_its_paper_and_80_percent_na(
    tmp_path,
):
    files = [[real(f"biored/{split}.PubTator.gz")] for split in ("Train", "Dev", "Test")]
    store = prepare_documents(tmp_path / "store", *files)
    letters = {tuple(store.entity_types[kind][0] for kind in pair) for pair in store.type_pairs}
    assert letters == set(map(tuple, ("GD", "GC", "GG", "DC", "DV", "CC", "CV", "VV")))
    counts = store.manifest["counts"]
    assert (counts["mentions"], counts["relations"], counts["relations_outside_candidates"]) == (
        20_419,
        6499,
        1,
    )
    num_candidates = sum(len(store.candidates(row)[0]) for row in range(store.num_rows))
    assert 1 - (6499 - 1) / num_candidates == pytest.approx(0.818, abs=0.001)
    assert list(store.entity_types) == sorted(store.entity_types, key=type_rank)


def test_no_document_of_bioreds_test_set_is_left_when_it_is_excluded(tmp_path):
    exclude = real("biored/Test.PubTator.gz")
    files = sorted(Path(real("pubtator_ner")).glob("*_Test.PubTator.gz"))
    store = prepare_documents(tmp_path / "store", files, exclude=[exclude])
    test_ids = {raw.document_id for raw in read_documents(exclude, Quarantine())}
    assert len(test_ids) == 100
    assert not test_ids & {store.document_id(row) for row in range(store.num_rows)}
    assert store.manifest["quarantine"][HELD_OUT]["count"] >= 100


def labeled(number):
    return str(number), f"Gene{number}:Gene:{number} Tumor:Disease:D1", [f"Cause {number} D1"]


def dev_ids(store):
    return {store.document_id(row) for row in store.split_rows("dev")}


def test_validation_documents_are_drawn_by_their_ids_and_the_seed_alone(tmp_path):
    files = [
        pubtator(tmp_path / str(part), *map(labeled, range(part, 400, 2))) for part in range(2)
    ]
    drawn = prepare_documents(tmp_path / "store", files, dev_share=0.2)
    counts = drawn.manifest["counts"]
    assert counts["train_documents"] + counts["dev_documents"] == 400
    assert (
        60 <= counts["dev_documents"] == len(dev_ids(drawn)) <= 100
    )  # 80 ± 2.5 standard deviations
    assert not drawn.manifest["quarantine"]
    turned = prepare_documents(tmp_path / "turned", files[::-1], dev_share=0.2)
    assert dev_ids(turned) == dev_ids(drawn)
    more = prepare_documents(tmp_path / "more", files, dev_share=0.5)
    assert dev_ids(more) > dev_ids(drawn)
    other = prepare_documents(tmp_path / "other", files, dev_share=0.2, seed=1)
    assert 4 < len(dev_ids(other) & dev_ids(drawn)) < 40  # 16 by chance
    assert other.manifest["parameters"]["seed"] == 1


def test_unlabeled_documents_stay_in_training_unless_a_labeled_copy_was_drawn(tmp_path):
    files = [
        pubtator(tmp_path / "labeled", *map(labeled, range(50))),
        pubtator(
            tmp_path / "unlabeled", *((*labeled(number)[:2], []) for number in range(25, 200))
        ),
    ]
    store = prepare_documents(tmp_path / "store", files, dev_share=0.5)
    drawn, twice = dev_ids(store), {str(number) for number in range(25, 50)}
    assert 10 < len(drawn) < 40
    assert max(map(int, drawn)) < 50
    assert {store.document_id(row) for row in store.split_rows("train")} == set(
        map(str, range(200))
    ) - drawn
    assert all(len(store.relations(row)[0]) for row in store.split_rows("dev"))
    quarantine = store.manifest["quarantine"]
    assert quarantine[HELD_OUT]["count"] == len(drawn & twice)
    assert quarantine[DUPLICATE]["count"] == len(twice - drawn)


def test_no_document_that_is_tested_on_or_excluded_is_drawn(tmp_path):
    train = pubtator(tmp_path / "train", *map(labeled, range(60)))
    test = pubtator(tmp_path / "test", *map(labeled, range(20)))
    exclude = pubtator(tmp_path / "exclude", *map(labeled, range(20, 40)))
    store = prepare_documents(
        tmp_path / "store", [train], test=[test], exclude=[exclude], dev_share=0.5
    )
    assert dev_ids(store)
    assert min(map(int, dev_ids(store))) >= 40
    assert [store.manifest["counts"][f"{split}_documents"] for split in ("train", "test")] == [
        20 - len(dev_ids(store)),
        20,
    ]


def test_a_share_that_is_none_stands_beside_dev_or_draws_nothing_is_refused(tmp_path):
    train, dev = pubtator(tmp_path / "train", *TRAIN), pubtator(tmp_path / "dev", *DEV)
    for share in (0.0, 1.0, -0.2, float("nan")):
        with pytest.raises(ConfigError, match=r"--dev-share .*: want a number above 0 and below 1"):
            prepare_documents(tmp_path / "store", [train], dev_share=share)
    with pytest.raises(ConfigError, match=r"--dev-share 0.2 and --dev .*dev: got both"):
        prepare_documents(tmp_path / "store", [train], [dev], dev_share=0.2)
    with pytest.raises(
        DataError,
        match="0.001 of 2 training documents with relations drew none; want a larger share",
    ):
        prepare_documents(tmp_path / "store", [train], dev_share=0.001, max_bad_share=0.5)
    assert not (tmp_path / "store").exists()


def test_the_command_says_how_many_documents_it_drew(tmp_path):
    train = pubtator(tmp_path / "train", *map(labeled, range(40)))
    command = [
        "documents",
        "--input",
        str(train),
        "--out",
        str(tmp_path / "store"),
        "--dev-share",
        "0.25",
    ]
    result = CliRunner().invoke(prepare.app, [*command, "--seed", "3"], catch_exceptions=False)
    store = open_store(tmp_path / "store", DocumentStore)
    num_drawn = len(dev_ids(store))
    assert (
        f"of --input, {num_drawn} documents are dev and {40 - num_drawn} are training documents"
        in result.output
    )
    expected = prepare_documents(tmp_path / "expected", [train], dev_share=0.25, seed=3)
    assert dev_ids(store) == dev_ids(expected)


def test_a_fifth_of_re_docreds_validation_set_can_be_kept_from_training(tmp_path):
    folder = Path(real("re_docred"))
    files, names = [folder / "dev_revised.json.gz"], folder / "rel_info.json"
    store = prepare_documents(tmp_path / "store", files, relation_names=names, dev_share=0.2)
    counts = store.manifest["counts"]
    assert counts["train_documents"] + counts["dev_documents"] == 500
    assert 80 <= counts["dev_documents"] <= 120
    assert (counts["relations"], counts["relation_names"]) == (17_284, 97)
