import pytest

from raybio.core.errors import DataError
from raybio.methods.relation_graphs.formats import (
    NO_ENTITY,
    NO_WORDS,
    NOT_OF_THE_FORM,
    OUTSIDE,
    REPEATED_ID,
    FoldIds,
    WordSentence,
    read_folds,
    read_spert,
)
from raybio.store.quarantine import Quarantine
from raybio.store.relation_labels import NAMED_NA, SELF_RELATION
from tests.methods.relation_graphs.spert_files import ADVERSE_EFFECT, folds, sentence, write

SOUND = sentence("Aspirin gave fatal pain", "Drug:0:1 Adverse-Effect:2:4", "1:0", orig_id=7)


def changed(**fields):
    return {**SOUND, **fields}


def entity(**fields):
    return changed(entities=[SOUND["entities"][0], {**SOUND["entities"][1], **fields}])


def relation(**fields):
    return changed(relations=[{**SOUND["relations"][0], **fields}])


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_sentence_is_read_as_it_is_written_plain_or_gzip(tmp_path, name):
    quarantine = Quarantine()
    content = [
        SOUND,
        sentence("No names here .", orig_id="PMID 3"),
        sentence("ÄTHER"),
        changed(orig_id=None),
    ]
    first, *others = read_spert(write(tmp_path / name, content), quarantine)
    entities = (("Drug", 0, 1), (ADVERSE_EFFECT, 2, 4))
    assert first == WordSentence(
        ("Aspirin", "gave", "fatal", "pain"), entities, ((ADVERSE_EFFECT, 1, 0),), "7"
    )
    assert [one.orig_id for one in others] == ["PMID 3", "", ""]
    assert others[1].words == ("ÄTHER",)
    assert (quarantine.num_seen("sentence"), quarantine.summary()) == (4, {})


@pytest.mark.parametrize(
    "extended", [changed(sent="x", ltokens=["a"]), entity(text="pain"), relation(score=0.5)]
)
def test_keys_that_spert_does_not_read_change_nothing(tmp_path, extended):
    quarantine = Quarantine()
    plain = read_spert(write(tmp_path / "a.json", [SOUND]), quarantine)
    assert read_spert(write(tmp_path / "b.json", [extended]), quarantine) == plain
    assert not quarantine.count_by_reason


@pytest.mark.parametrize(
    ("bad", "reason", "detail"),
    [
        (changed(tokens=[]), NO_WORDS, "7: "),
        (changed(tokens="Aspirin gave"), NOT_OF_THE_FORM, "7: 'tokens' is no list"),
        (changed(tokens=["Aspirin", " ", "a", "b"]), NOT_OF_THE_FORM, "7: token ' ', want a text"),
        (changed(tokens=["Aspirin", 5, "a", "b"]), NOT_OF_THE_FORM, "7: token 5, want a text"),
        (
            changed(tokens=["Aspirin", "\ud800", "a", "b"]),
            NOT_OF_THE_FORM,
            "7: token '\\ud800', want a text",
        ),
        (entity(end=5), OUTSIDE, "7: Adverse-Effect 2 to 5 of 4"),
        (entity(start=4), OUTSIDE, "7: Adverse-Effect 4 to 4 of 4"),
        (entity(start=-1), OUTSIDE, "7: Adverse-Effect -1 to 4 of 4"),
        (
            entity(start=True),
            NOT_OF_THE_FORM,
            "{'type': 'Adverse-Effect', 'start': True, 'end': 4}, want a text",
        ),
        (
            entity(end=3.0),
            NOT_OF_THE_FORM,
            "{'type': 'Adverse-Effect', 'start': 2, 'end': 3.0}, want a text and two",
        ),
        (entity(type=""), NOT_OF_THE_FORM, "{'type': '', 'start': 2"),
        (
            changed(entities=["Drug"]),
            NOT_OF_THE_FORM,
            "one with 'start' and 'end' is a str, want an object",
        ),
        (relation(tail=2), NO_ENTITY, "7: Adverse-Effect of 1 and 2, of 2 entities"),
        (relation(head=-1), NO_ENTITY, "7: Adverse-Effect of -1 and 0, of 2 entities"),
        (relation(head=0), SELF_RELATION, "7: Adverse-Effect of 0 and 0"),
        (relation(type="NA"), NAMED_NA, "7: NA of 1 and 0"),
        (
            changed(relations=[{"type": "x", "head": 0}]),
            NOT_OF_THE_FORM,
            "one with 'head' and 'tail' is without",
        ),
        (changed(orig_id=7.5), NOT_OF_THE_FORM, "orig_id 7.5, want a whole number or a text"),
        (changed(orig_id=False), NOT_OF_THE_FORM, "orig_id False, want a whole number or a text"),
        (changed(orig_id="7"), REPEATED_ID, "7"),
        ({"tokens": ["a"], "entities": []}, NOT_OF_THE_FORM, "the sentence is without 'relations'"),
        (["Aspirin"], NOT_OF_THE_FORM, "the sentence is a list, want an object"),
    ],
)
def test_a_bad_sentence_is_set_aside_with_its_file_number_and_reason_and_the_others_are_kept(
    tmp_path, bad, reason, detail
):
    quarantine = Quarantine()
    path = write(tmp_path / "a.json", [SOUND, bad, sentence("Fine", orig_id="x")])
    assert [one.orig_id for one in read_spert(path, quarantine, set())] == ["7", "x"]
    assert quarantine.count_by_reason == {reason: 1}
    example = quarantine.examples_by_reason[reason][0]
    assert (example.file, example.line) == ("a.json", 2)
    assert example.detail.startswith(detail[:79])
    with pytest.raises(DataError, match="1 of 3 sentence records are bad"):
        quarantine.check("sentence")


@pytest.mark.parametrize("orig_id, expected", [(7, "7"), (7.5, ""), (["7"], ""), (False, "")])
def test_ids_that_nothing_refers_to_may_repeat_and_have_any_form(tmp_path, orig_id, expected):
    quarantine = Quarantine()
    path = write(tmp_path / "a.json", [SOUND, changed(orig_id=orig_id)])
    assert [one.orig_id for one in read_spert(path, quarantine)] == ["7", expected]
    assert not quarantine.count_by_reason


def test_files_may_share_their_ids(tmp_path):
    paths = [write(tmp_path / f"{name}.json", [SOUND]) for name in "ab"]
    assert [len(read_spert(path, Quarantine())) for path in paths] == [1, 1]
    taken, quarantine = set(), Quarantine()
    assert [len(read_spert(path, quarantine, taken)) for path in paths] == [1, 0]
    assert (quarantine.count_by_reason, taken) == ({REPEATED_ID: 1}, {"7"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "line 1: is no JSON of the wanted form .*want '\\['"),
        (b'{"split_1": {}}', "want '\\['"),
        (b"[]", "is an empty list, want a list of sentences"),
        (b"", "is no JSON of the wanted form"),
        (b'[{"tokens": ["a"], "entities": []', "is no JSON of the wanted form"),
        (b'[{"tokens": ["a"], "tokens": ["b"]}]', "names 'tokens' twice"),
        (b'[{"tokens": ["\xff"]}]', "not UTF-8"),
        (b"\x1f\x8b\x08\x00torn", "torn or damaged"),
    ],
)
def test_a_file_that_is_no_list_of_sentences_is_refused(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"a.json.*{message}"):
        read_spert(path, Quarantine())
    with pytest.raises(DataError, match=r"absent: cannot be read \(there is no such file\)"):
        read_spert(tmp_path / "absent", Quarantine())


def test_folds_come_by_their_numbers(tmp_path):
    value = folds(*((f"{number} a", f"b{number}") for number in range(1, 12)))
    path = write(tmp_path / "f.json.gz", dict(sorted(value.items())))  # split_10 before split_2
    assert read_folds(path) == tuple(
        FoldIds((f"{number}", "a"), (f"b{number}",)) for number in range(1, 12)
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "got no fold at all, want folds split_1 to split_N"),
        ([], "holds a list, want an object"),
        ({"split_2": {}}, "got 'split_2', want folds split_1 to split_N without a gap"),
        ({"split_1": [], "fold_2": []}, "got 'fold_2'"),
        ({"split_1": []}, "split_1: is a list, want an object with 'train set' and 'test set'"),
        ({"split_1": {"train set": ["1"]}}, r"split_1: is an object of \['train set'\]"),
        (
            {"split_1": {"train set": ["1"], "test set": ["2"], "dev set": []}},
            "split_1: is an object of",
        ),
        (
            {"split_1": {"train set": [1], "test set": ["2"]}},
            "split_1: 'train set' is no list of texts",
        ),
        (
            {"split_1": {"train set": ["1"], "test set": "2"}},
            "split_1: 'test set' is no list of texts",
        ),
        (folds(("1", "2"), ("1", "")), "split_2: 'test set' is empty"),
        (folds(("", "2")), "split_1: 'train set' is empty"),
        (
            folds(("1 2", "3"), ("1 2", "3 2")),
            "split_2: orig_id '2' is in 'train set' and in 'test set'",
        ),
        (folds(("1 5 5", "3")), "split_1: orig_id '5' is twice in 'train set'"),
    ],
)
def test_folds_that_are_not_sound_are_refused_by_name(tmp_path, value, message):
    with pytest.raises(DataError, match=f"f.json.*{message}"):
        read_folds(write(tmp_path / "f.json", value))
