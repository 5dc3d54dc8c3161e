from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from raybio.data.bioasq import BioasqQuestion, Snippet
from raybio.data.hallmarks import HALLMARKS, TAXONOMY, HallmarkDocument
from raybio.data.pubmedqa import PubMedQuestion
from raybio.errors import ConfigError, DataError
from raybio.evaluation.zero_shot import BASELINES, judge
from raybio.systems import zero_shot_tasks
from raybio.systems.zero_shot_tasks import HALLMARK_DESCRIPTIONS, TASK_NAMES, hallmark_task, read_tasks

SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
HOC = SHARED_DATA / "hallmarks_of_cancer" / "hoc_text_labels.tar.gz"
PUBMEDQA, BIOASQ = SHARED_DATA / "pubmedqa" / "ori_pqal.json.gz", SHARED_DATA / "bioasq_7b"
real = pytest.mark.skipif(
    not (HOC.exists() and PUBMEDQA.exists() and BIOASQ.exists()), reason="../shared/data lacks HoC, PubMedQA or BioASQ"
)
DAMAGE = ("Genomic instability and mutation", "DNA damage")
DOCUMENTS = (
    HallmarkDocument("1", ("Cells die .", "DNA breaks ."), ((("Resisting cell death", "Apoptosis"),), (DAMAGE,))),
    HallmarkDocument("2", ("Nothing .",), ((),)),
    HallmarkDocument("3", ("Adducts .",), (((*DAMAGE, "Adducts"),),)),
)


def gold_of(task):
    return [task.indices[low:high].tolist() for low, high in zip(task.indptr, task.indptr[1:], strict=False)]


def article(pmid, decision):
    return PubMedQuestion(pmid, f"Question {pmid}?", (f"Context {pmid}.",), (), f"Answer {pmid}.", decision, (), None)


def question(number, *snippets, is_yes=True, kind="yesno", ideal=("Yes.",)):
    passages = tuple(Snippet(text, "d") for text in snippets)
    return BioasqQuestion(f"{number}", f"Question {number}?", kind, passages, ideal, is_yes, ())


def test_hallmarks_ask_for_documents_with_a_sentence_of_theirs():
    task = hallmark_task(DOCUMENTS)
    assert (task.name, task.queries) == ("hoc-10", HALLMARKS)
    assert task.documents == ("Cells die . DNA breaks .", "Nothing .", "Adducts .")
    found = {name: gold for name, gold in zip(HALLMARKS, gold_of(task), strict=True) if gold}
    assert found == {"Resisting cell death": [0], "Genomic instability and mutation": [0, 2]}


def test_all_classes_ask_for_documents_of_theirs_or_of_a_class_below():
    task = hallmark_task(DOCUMENTS, all_classes=True)
    found = {path: gold for path, gold in zip(TAXONOMY, gold_of(task), strict=True) if gold}
    assert found[DAMAGE] == found[DAMAGE[:1]] == [0, 2]
    assert found[*DAMAGE, "Adducts"] == [2]
    assert task.queries == tuple(path[-1] for path in TAXONOMY)


def test_documents_may_be_a_list_and_queries_may_be_described():
    task = hallmark_task(DOCUMENTS, pmids=["2", "3"], descriptions=HALLMARK_DESCRIPTIONS)
    assert (task.name, task.documents) == ("hoc-10-described-listed", ("Nothing .", "Adducts ."))
    assert task.queries[-1].startswith("Avoiding immune destruction: cancer cells escape")
    assert "only the abstracts of the given list" in task.protocol
    assert set(HALLMARK_DESCRIPTIONS) == set(HALLMARKS)
    with pytest.raises(DataError, match="1 PMIDs .* the first: 9"):
        hallmark_task(DOCUMENTS, pmids=["9"])


def test_questions_of_pubmedqa_ask_for_their_answer_or_abstract():
    articles = [article("1", "yes"), article("2", "maybe"), article("3", "no")]
    answers, contexts = zero_shot_tasks.pubmedqa_answers(articles), zero_shot_tasks.pubmedqa_contexts(articles)
    assert answers.documents == ("Answer 1.", "Answer 2.", "Answer 3.")
    assert contexts.documents == ("Context 1.", "Context 2.", "Context 3.")
    assert gold_of(answers) == gold_of(contexts) == [[0], [1], [2]]
    assert zero_shot_tasks.pubmedqa_yesno_topk(articles).is_yes_Q.tolist() == [True, False, False]
    with pytest.raises(DataError, match="no decision, the first: 4"):
        zero_shot_tasks.pubmedqa_yesno_topk([*articles, article("4", None)])


def test_yes_no_questions_of_bioasq_ask_for_their_distinct_snippets():
    questions = [
        question(1, "a", "b", "a"),
        question(2, "b", "c", is_yes=False, ideal=("No.", "Never.")),
        question(3, "d", kind="summary", is_yes=None),
        question(4),
    ]
    snippets = zero_shot_tasks.bioasq_snippets(questions)
    assert (snippets.queries, snippets.documents) == (("Question 1?", "Question 2?"), ("a", "b", "c"))
    assert gold_of(snippets) == [[0, 1], [1, 2]]
    assert gold_of(zero_shot_tasks.bioasq_ideal_answers(questions)) == [[0], [1, 2]]
    pairs = zero_shot_tasks.bioasq_yesno_topk(questions)
    assert (pairs.documents, pairs.is_yes_Q.tolist()) == (("a b a", "b c"), [True, False])
    with pytest.raises(DataError, match="none of 1 BioASQ questions"):
        zero_shot_tasks.bioasq_snippets(questions[2:3])


def test_a_task_that_is_unknown_or_lacks_its_data_is_refused():
    with pytest.raises(ConfigError, match="'hoc' is no task; want some of hoc-10"):
        read_tasks(names=["hoc"])
    with pytest.raises(ConfigError, match=r"task 'bioasq-snippets' needs its data set \(bioasq\)"):
        read_tasks(names=["bioasq-snippets"])
    assert read_tasks() == []


@pytest.fixture(scope="module")
def results():
    tasks = read_tasks(hoc=HOC, pubmedqa=PUBMEDQA, bioasq=BIOASQ)
    return {task.name: judge(task, BASELINES, np.random.default_rng(0)) for task in tasks}


@real
def test_the_tasks_have_the_sizes_of_their_data(results):
    assert tuple(results) == TASK_NAMES
    sizes = {name: (len(r.task.queries), len(r.task.documents), r.task.num_gold) for name, r in results.items()}
    assert sizes == {
        "hoc-10": (10, 1852, 2466),
        "hoc-10-described": (10, 1852, 2466),
        "hoc-37": (37, 1852, 5773),
        "pubmedqa-answers": (1000, 1000, 1000),
        "pubmedqa-contexts": (1000, 1000, 1000),
        "pubmedqa-yesno-topk": (1000, 1000, 552),
        "bioasq-snippets": (140, 956, 981),
        "bioasq-ideal-answers": (140, 155, 160),
        "bioasq-yesno-topk": (140, 140, 94),
    }


@real
def test_words_are_far_above_chance_where_texts_are_retrieved(results):
    for name, result in results.items():
        if "yesno" not in name:
            assert all(one.micro.low > 1.5 * result.chance.micro for one in result.judgements), name
    for dataset in ("pubmedqa-answers", "bioasq-snippets"):
        assert all(one.micro.low > 0.7 for one in results[dataset].judgements)


@real
def test_words_say_nothing_about_yes_or_no(results):
    for name in ("pubmedqa-yesno-topk", "bioasq-yesno-topk"):
        for one in results[name].judgements:
            assert one.micro.low < results[name].chance.micro < one.micro.high


@real
def test_tfidf_on_pubmedqa_equals_scikit_learn_alone(results):
    task = results["pubmedqa-answers"].task
    vectorizer = TfidfVectorizer(sublinear_tf=True)
    documents = vectorizer.fit_transform(task.documents)
    score = (vectorizer.transform(task.queries) @ documents.T).toarray()
    assert results["pubmedqa-answers"].judgements[0].micro.value == (score.argmax(1) == np.arange(1000)).mean()
