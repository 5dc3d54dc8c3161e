import json

import numpy as np
import pytest

from raybio.core.errors import DataError
from raybio.methods.contrastive_probe.benchmark.medlama import medlama_files, read_medlama
from raybio.methods.contrastive_probe.demo import KnowledgeConfig, write_knowledge
from raybio.methods.contrastive_probe.prepare import prepare_sentences
from raybio.methods.contrastive_probe.published import paper_prompts
from tests.paths import SHARED_DATA

RELEASED = SHARED_DATA / "medlama"
real = pytest.mark.skipif(not RELEASED.exists(), reason="../shared/data/medlama is not there")
HEADER = "head_cui,head_name,rel,tail_names,tail_cuis\n"
ASPIRIN = 'C1,Aspirin,may_treat,"Pain, acute || Fièvre",C2 || C3\n'
PAIN = 'C2,"Pain, acute",may_treat,"Aspirin || Pain, acute",C1 || C9\n'


def write(folder, name="may_treat_1.csv", rows=ASPIRIN, header=HEADER):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / name).write_text(header + rows, encoding="utf-8")
    return folder


def test_names_answers_and_cuis_are_numbered_in_order(tmp_path):
    write(tmp_path, "may_treat_2.csv", ASPIRIN + PAIN)
    write(tmp_path, "has_use_1.csv", "C1,Aspirin,has_use,Ibuprofen [Y],C4\n")
    benchmark = read_medlama(tmp_path)
    assert benchmark.relations == ("has_use", "may_treat")
    assert benchmark.names == ("Aspirin", "Fièvre", "Ibuprofen [Y]", "Pain, acute")
    assert benchmark.is_tail_C.tolist() == [True, True, True, True]
    assert benchmark.relation_Q.tolist() == [0, 1, 1]
    assert benchmark.head_Q.tolist() == [0, 0, 3]
    assert benchmark.indptr_Q1.tolist() == [0, 1, 3, 5]
    assert benchmark.answer_P.tolist() == [2, 1, 3, 0, 3]
    assert benchmark.cuis == ("C1", "C2", "C3", "C4", "C9")
    assert benchmark.cui_indptr_C1.tolist() == [0, 1, 2, 3, 5]
    assert benchmark.cui_E.tolist() == [0, 2, 3, 1, 4]
    kinds = [
        benchmark.relation_Q,
        benchmark.head_Q,
        benchmark.indptr_Q1,
        benchmark.answer_P,
        benchmark.is_tail_C,
    ]
    assert [array.dtype for array in kinds] == [np.int16, np.int32, np.int64, np.int32, np.bool_]
    assert benchmark.queries("[MASK]") == [
        "Aspirin has use [MASK].",
        "Aspirin might treat [MASK].",
        "Pain, acute might treat [MASK].",
    ]


def test_a_head_that_contains_a_placeholder_is_not_replaced(tmp_path):
    write(tmp_path, rows="C1,Odd [Y] [X],may_treat,Pain,C2\n")
    assert read_medlama(tmp_path).queries("<mask>") == ["Odd [Y] [X] might treat <mask>."]


def test_a_name_that_is_only_a_head_is_no_tail(tmp_path):
    benchmark = read_medlama(write(tmp_path))
    assert dict(zip(benchmark.names, benchmark.is_tail_C.tolist(), strict=True)) == {
        "Aspirin": False,
        "Fièvre": True,
        "Pain, acute": True,
    }


def test_other_columns_are_ignored_such_as_an_unnamed_row_number(tmp_path):
    write(tmp_path, rows="0," + ASPIRIN, header="," + HEADER)
    assert read_medlama(tmp_path).names == ("Aspirin", "Fièvre", "Pain, acute")


def test_the_hard_set_has_the_names_of_its_own_files(tmp_path):
    write(tmp_path / "2021AA", "may_treat_2.csv", ASPIRIN + "C5,Honey,may_treat,Cough,C6\n")
    write(tmp_path / "2021AA", "may_treat_1_hard.csv")
    assert len(read_medlama(tmp_path, "full").names) == 5
    assert read_medlama(tmp_path, "hard").names == ("Aspirin", "Fièvre", "Pain, acute")


def test_a_hard_set_without_rows_is_none(tmp_path):
    write(tmp_path)
    write(tmp_path, "may_treat_0_hard.csv", "")
    assert [path.name for path in medlama_files(tmp_path)["full"]] == ["may_treat_1.csv"]
    assert medlama_files(tmp_path)["hard"] == []


def test_a_list_of_answers_is_as_many_names(tmp_path):
    row = dict(zip(HEADER.strip().split(","), ["C1", "Aspirin", "may_treat"], strict=False))
    row |= {"tail_names": ["Pain, acute", "Fièvre"], "tail_cuis": ["C2", "C3"]}
    (tmp_path / "may_treat_1.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    benchmark = read_medlama(tmp_path)
    assert benchmark.names == ("Aspirin", "Fièvre", "Pain, acute")
    assert benchmark.answer_P.tolist() == [1, 2]
    assert benchmark.cuis == ("C1", "C2", "C3")


def test_prompts_of_the_folder_are_used_and_only_released_typos_are_corrected(tmp_path):
    gene = "gene_associated_with_disease"
    write(tmp_path / "files")
    write(tmp_path / "files", "occurs_after_1.csv", "C1,A,occurs_after,B,C2\n")
    write(tmp_path / "files", f"{gene}_1.csv", f"C1,A,{gene},B,C2\n")
    prompts = [
        f"{gene},[X] gene associated with disease [Y] .,"
        "The gene [X] is associatied with disease [Y] .",
        "may_treat,[X] may treat [Y] .,[X] is associatied with [Y] .",
    ]
    write(tmp_path, "prompts.csv", "\n".join(prompts), header="pid,default_prompt,human_prompt\n")
    after = "[X] occurs after [Y]."
    assert read_medlama(tmp_path).prompts == (
        "The gene [X] is associated with disease [Y].",
        "[X] is associatied with [Y] .",
        after,
    )
    assert read_medlama(tmp_path, prompts="released").prompts == (
        "The gene [X] is associatied with disease [Y] .",
        "[X] is associatied with [Y] .",
        after,
    )
    assert read_medlama(tmp_path, prompts="default").prompts[1:] == ("[X] may treat [Y] .", after)
    # The words of the names: such stores are those of earlier commits.
    assert read_medlama(tmp_path).default_prompts is None


def test_default_prompts_of_the_folder_are_the_second_wording_of_training_too(tmp_path):
    write(tmp_path / "files")
    write(tmp_path / "files", "occurs_after_1.csv", "C1,A,occurs_after,B,C2\n")
    write(tmp_path / "files", "P1_1.csv", "C1,A,P1,B,C2\n")
    prompts = "P1,[X] is given against [Y].,[X] cures [Y].\nmay_treat,,[X] treats [Y].\n"
    write(tmp_path, "prompts.csv", prompts, header="pid,default_prompt,human_prompt\n")
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("one two three\n")
    store = prepare_sentences(tmp_path / "store", [sentences], tmp_path)
    benchmark = store.benchmarks["full"].sample(1, seed=0)
    wanted = ("[X] is given against [Y].", "[X] may treat [Y].", "[X] occurs after [Y].")
    assert benchmark.with_default_prompts.prompts == wanted
    assert read_medlama(tmp_path, prompts="default").prompts == wanted
    assert benchmark.prompts[:2] == ("[X] cures [Y].", "[X] treats [Y].")


@pytest.mark.parametrize(
    ("name", "header", "rows", "message"),
    [
        (
            "may_treat_1.csv",
            "head_cui,head_name,rel,tail_names\n",
            "",
            "may_treat_1.csv: has no column 'tail_cuis'",
        ),
        (
            "may_treat_1.csv",
            HEADER,
            "C1,Aspirin,may_treat,A || B,C2\n",
            "line 2: 2 tail_names for 1 tail_cuis",
        ),
        (
            "may_treat_1.csv",
            HEADER,
            "C1,Aspirin,may_treat, || B,C2 || C3\n",
            "line 2: 2 tail_names for 2 tail_cuis",
        ),
        (
            "may_treat_2.csv",
            HEADER,
            ASPIRIN + "C1,,may_treat,A,C2\n",
            "line 3: .*want a text in each of",
        ),
        ("may_treat_2.csv", HEADER, ASPIRIN + "C1,Aspirin\n", "line 3: has 2 columns, want 5"),
        (
            "may_treat_1.csv",
            HEADER,
            "C1,Aspirin,may_treat,A,C2,C3\n",
            "line 2: has 6 columns, want 5",
        ),
        ("may_treat_2.csv", HEADER, ASPIRIN, "holds 1 rows, its name says 2"),
        (
            "may_treat_1.csv",
            HEADER,
            ASPIRIN.replace("may_treat", "may_cure"),
            "line 2: rel is 'may_cure'",
        ),
        ("may_treat_1.csv", HEADER, 'C1,"Aspi\n', "line 2: cannot be read as a table"),
        ("may_treat_0.csv", HEADER, "", "hold no query"),
        ("treatments.csv", HEADER, ASPIRIN, "found none"),
    ],
)
def test_bad_input_is_named_with_file_and_line(tmp_path, name, header, rows, message):
    with pytest.raises(DataError, match=message):
        read_medlama(write(tmp_path, name, rows, header))


def test_ambiguous_or_unreadable_files_are_refused(tmp_path):
    write(tmp_path / "a")
    with pytest.raises(
        DataError, match="has no files of the hard set, want <relation>_<rows>_hard.csv"
    ):
        read_medlama(tmp_path, "hard")
    write(tmp_path / "a", "may_treat_2.csv", ASPIRIN + PAIN)
    with pytest.raises(
        DataError, match=r"may_treat_2\.csv: may_treat_1\.csv has the same relation"
    ):
        read_medlama(tmp_path)
    write(tmp_path / "b")
    with pytest.raises(DataError, match="want one folder with"):
        read_medlama(tmp_path)
    with pytest.raises(DataError, match="found none"):
        read_medlama(tmp_path / "absent")
    (tmp_path / "b" / "may_treat_1.csv").write_bytes((HEADER + ASPIRIN).encode("latin-1"))
    with pytest.raises(DataError, match="line . is not UTF-8"):
        read_medlama(tmp_path / "b")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "pid,human_prompt\nmay_treat,[X] [Y]\n",
            "has no column 'default_prompt'; .* want the columns pid, default_prompt, human_prompt",
        ),
        (
            "pid,default_prompt,human_prompt\nmay_treat,[X] [Y],[X] cures\n",
            r"line 2: '\[X\] cures', want one \[X\]",
        ),
        ("pid,default_prompt,human_prompt\nmay_treat,[X] [Y]\n", "line 2: has 2 columns, want 3"),
        (
            "pid,default_prompt,human_prompt\n" + 2 * "may_treat,[X] [Y],[X] [Y]\n",
            "line 3: may_treat has a prompt",
        ),
        ('pid,default_prompt,human_prompt\nmay_treat,"', "cannot be read as a table"),
    ],
)
def test_bad_prompts_are_named_with_file_and_line(tmp_path, content, message):
    write(tmp_path)
    (tmp_path / "prompts.csv").write_text(content)
    with pytest.raises(DataError, match=rf"prompts\.csv.*{message}"):
        read_medlama(tmp_path)


@real
def test_the_released_full_set_has_the_counts_that_were_measured():
    benchmark = read_medlama(RELEASED)
    assert benchmark.relations == tuple(paper_prompts())
    assert benchmark.prompts == tuple(paper_prompts().values())
    assert np.bincount(benchmark.relation_Q).tolist() == [1000] * 19
    assert len(benchmark.names) == 22_923
    assert list(benchmark.names) == sorted(set(benchmark.names))
    assert len(np.unique(benchmark.head_Q)) == 15_331
    assert int(benchmark.is_tail_C.sum()) == 8_801
    assert len(benchmark.answer_P) / 19_000 == pytest.approx(2.297, abs=5e-4)
    query_P = np.repeat(np.arange(19_000), np.diff(benchmark.indptr_Q1))
    assert int((benchmark.head_Q[query_P] == benchmark.answer_P).sum()) == 200
    is_foreign_P = np.array(
        [not benchmark.names[answer].isascii() for answer in benchmark.answer_P]
    )
    assert len(np.unique(query_P[is_foreign_P])) == 6
    assert all(" || " not in name for name in benchmark.names)
    same_query = np.diff(query_P) == 0
    assert (np.diff(benchmark.answer_P)[same_query] > 0).all()


@real
def test_the_released_hard_set_has_the_counts_that_were_measured():
    benchmark = read_medlama(RELEASED, "hard", "released")
    per_relation = dict(
        zip(benchmark.relations, np.bincount(benchmark.relation_Q).tolist(), strict=True)
    )
    assert len(benchmark.relation_Q) == 15_329
    assert (
        per_relation["associated_morphology_of"],
        per_relation["gene_associated_with_disease"],
    ) == (158, 997)
    assert len(benchmark.names) < 22_923
    assert (
        benchmark.prompts[2] == "The disease [X] can stem from the associated anatomic_site [Y] ."
    )


def test_a_sample_holds_so_many_queries_of_each_relation_with_their_answers(tmp_path):
    config = KnowledgeConfig(num_heads=9, num_tails=6)
    _, folder = write_knowledge(tmp_path, config)
    benchmark = read_medlama(folder)
    sampled = benchmark.sample(4, seed=0)
    assert np.bincount(sampled.relation_Q).tolist() == [4] * len(benchmark.relations)
    assert sampled.names == benchmark.names
    answers = {
        (relation, head): gold.tolist()
        for relation, head, gold in zip(
            benchmark.relation_Q,
            benchmark.head_Q,
            np.split(benchmark.answer_P, benchmark.indptr_Q1[1:-1]),
            strict=True,
        )
    }
    found = zip(
        sampled.relation_Q,
        sampled.head_Q,
        np.split(sampled.answer_P, sampled.indptr_Q1[1:-1]),
        strict=True,
    )
    assert all(answers[relation, head] == gold.tolist() for relation, head, gold in found)
    for part in (sampled, benchmark.sample(6, seed=1).sample(4, seed=2)):
        numbers = part.index_in_complete_Q
        np.testing.assert_array_equal(benchmark.relation_Q[numbers], part.relation_Q)
        np.testing.assert_array_equal(benchmark.head_Q[numbers], part.head_Q)
    assert benchmark.sample(4, seed=1).head_Q.tolist() != sampled.head_Q.tolist()
    np.testing.assert_array_equal(benchmark.sample(100, seed=0).answer_P, benchmark.answer_P)


def test_a_sample_keeps_which_names_answer_which_relation_in_the_complete_benchmark(tmp_path):
    _, folder = write_knowledge(tmp_path, KnowledgeConfig(num_heads=9, num_tails=6))
    benchmark = read_medlama(folder)
    expected = np.zeros((len(benchmark.relations), len(benchmark.names)), dtype=bool)
    for query, relation in enumerate(benchmark.relation_Q):
        for answer in benchmark.answer_P[
            benchmark.indptr_Q1[query] : benchmark.indptr_Q1[query + 1]
        ]:
            expected[relation, answer] = True
    np.testing.assert_array_equal(benchmark.is_tail_RC, expected)
    sampled = benchmark.sample(4, seed=0).sample(1, seed=0)
    np.testing.assert_array_equal(sampled.is_tail_RC, expected)
    assert len(sampled.head_Q) == len(benchmark.relations)
