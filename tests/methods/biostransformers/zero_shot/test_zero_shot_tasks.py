import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from raybio.core.errors import ConfigError, DataError
from raybio.evaluation.lexical import BASELINES
from raybio.methods.biostransformers.zero_shot import tasks as zero_shot_tasks
from raybio.methods.biostransformers.zero_shot.datasets.bioasq import BioasqQuestion, Snippet
from raybio.methods.biostransformers.zero_shot.datasets.hallmarks import (
    HALLMARKS,
    TAXONOMY,
    HallmarkDocument,
)
from raybio.methods.biostransformers.zero_shot.datasets.pubmedqa import PubMedQuestion
from raybio.methods.biostransformers.zero_shot.names import DATA_SETS, TASK_NAMES, task_names
from raybio.methods.biostransformers.zero_shot.scores import evaluate_task
from raybio.methods.biostransformers.zero_shot.tasks import (
    HALLMARK_DESCRIPTIONS,
    hallmark_task,
    read_tasks,
)
from tests.methods.biostransformers.zero_shot.test_hallmarks import archive
from tests.paths import SHARED_DATA

HOC = SHARED_DATA / "hallmarks_of_cancer" / "hoc_text_labels.tar.gz"
PUBMEDQA, BIOASQ = SHARED_DATA / "pubmedqa" / "ori_pqal.json.gz", SHARED_DATA / "bioasq_7b"
real = pytest.mark.skipif(
    not (HOC.exists() and PUBMEDQA.exists() and BIOASQ.exists()),
    reason="../shared/data lacks HoC, PubMedQA or BioASQ",
)
DAMAGE = ("Genomic instability and mutation", "DNA damage")
DOCUMENTS = (
    HallmarkDocument(
        "1", ("Cells die .", "DNA breaks ."), ((("Resisting cell death", "Apoptosis"),), (DAMAGE,))
    ),
    HallmarkDocument("2", ("Nothing .",), ((),)),
    HallmarkDocument("3", ("Adducts .",), (((*DAMAGE, "Adducts"),),)),
)


def gold_of(task):
    return [
        task.indices[low:high].tolist()
        for low, high in zip(task.indptr, task.indptr[1:], strict=False)
    ]


def article(pmid, decision):
    return PubMedQuestion(
        pmid, f"Question {pmid}?", (f"Context {pmid}.",), f"Answer {pmid}.", decision, (), None
    )


def question(number, *snippets, is_yes=True, kind="yesno", ideal=("Yes.",)):
    passages = tuple(
        Snippet(text, f"http://www.ncbi.nlm.nih.gov/pubmed/{number}") for text in snippets
    )
    return BioasqQuestion(f"{number}", f"Question {number}?", kind, passages, ideal, is_yes)


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
    assert "9 classes have no abstract among these and are omitted" in task.protocol
    with pytest.raises(DataError, match="1 of 2 PMIDs .* the 3 abstracts .* the first: 9"):
        hallmark_task(DOCUMENTS, pmids=["9", "2"])


def test_questions_of_pubmedqa_ask_for_their_answer_or_abstract():
    articles = [article("1", "yes"), article("2", "maybe"), article("3", "no")]
    answers, contexts = (
        zero_shot_tasks.pubmedqa_answers(articles),
        zero_shot_tasks.pubmedqa_contexts(articles),
    )
    assert answers.documents == ("Answer 1.", "Answer 2.", "Answer 3.")
    assert contexts.documents == ("Context 1.", "Context 2.", "Context 3.")
    assert gold_of(answers) == gold_of(contexts) == [[0], [1], [2]]
    assert zero_shot_tasks.pubmedqa_yesno_topk(articles).is_yes_Q.tolist() == [True, False, False]
    assert (
        answers.pmids
        == contexts.pmids
        == zero_shot_tasks.pubmedqa_yesno_topk(articles).pmids
        == {1, 2, 3}
    )
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
    assert (snippets.queries, snippets.documents) == (
        ("Question 1?", "Question 2?"),
        ("a", "b", "c"),
    )
    assert gold_of(snippets) == [[0, 1], [1, 2]]
    assert gold_of(zero_shot_tasks.bioasq_ideal_answers(questions)) == [[0], [1, 2]]
    pairs = zero_shot_tasks.bioasq_yesno_topk(questions)
    assert (pairs.documents, pairs.is_yes_Q.tolist()) == (("a b a", "b c"), [True, False])
    assert pairs.pmids == snippets.pmids == {1, 2}
    assert (
        "Answering yes to all questions would give 0.667." in pairs.protocol
    )  # precision 1/2, recall 1
    with pytest.raises(DataError, match="none of 1 BioASQ questions"):
        zero_shot_tasks.bioasq_snippets(questions[2:3])


def test_every_protocol_of_pubmedqa_says_that_its_articles_may_have_been_trained_on():
    tasks = zero_shot_tasks
    for build in (tasks.pubmedqa_answers, tasks.pubmedqa_contexts, tasks.pubmedqa_yesno_topk):
        protocol = build([article("1", "yes"), article("2", "no")]).protocol
        assert (
            "pairs that `raybio prepare pairs` made from this file, has read questions and contexts"
            in protocol
        )


def test_a_task_is_requested_by_its_name_or_its_data_set():
    assert task_names(DATA_SETS) == list(TASK_NAMES)
    assert task_names(["bioasq-snippets", "hoc"]) == [*DATA_SETS["hoc"].tasks, "bioasq-snippets"]
    with pytest.raises(ConfigError, match="'hocus' is no task; want some of hoc, "):
        task_names(["hoc", "hocus"])
    with pytest.raises(ConfigError, match="--tasks: got no task"):
        task_names([])


def hoc_folder(folder):
    """A corpus of two abstracts where it is looked for."""
    archive(
        folder,
        text_7="A .",
        labels_7="<Resisting cell death--Apoptosis",
        text_8="B .",
        labels_8="< ",
    ).rename(folder / "hoc_text_labels.tar.gz")
    return folder


def test_tasks_of_the_hallmarks_are_requested_over_a_list_as_well(tmp_path):
    (tmp_path / "test.txt").write_text("7\n\n7\r\n")
    tasks = read_tasks(["hoc-10", "hoc-37"], hoc_folder(tmp_path), hoc_pmids=tmp_path / "test.txt")
    assert [task.name for task in tasks] == ["hoc-10", "hoc-37", "hoc-10-listed", "hoc-37-listed"]
    assert [task.pmids for task in tasks] == [{7, 8}, {7, 8}, {7}, {7}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"test\.txt: cannot be read \(there is no such file\), want PMIDs, one a line"),
        (b"\xff", r"test\.txt: line 1 is not UTF-8"),
        (b"\n", r"test\.txt: names no article"),
        (b"7\nPMID: 8\n", r"test\.txt, line 2: 'PMID: 8' is no PMID"),
        (b"7\n9\n", "1 of 2 PMIDs of the list are not among the 2 abstracts .* the first: 9"),
    ],
)
def test_a_list_that_does_not_fit_is_refused_by_line(tmp_path, content, message):
    if content is not None:
        (tmp_path / "test.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_tasks(["hoc-10"], hoc_folder(tmp_path), hoc_pmids=tmp_path / "test.txt")


def test_a_list_without_a_task_for_it_and_data_that_is_not_there_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="--hoc-pmids .*: there is no task of hoc"):
        read_tasks(["bioasq-snippets"], tmp_path, hoc_pmids=tmp_path / "test.txt")
    with pytest.raises(ConfigError, match="holds no pubmedqa; want pubmedqa/ori_pqal.json.gz or "):
        read_tasks(["pubmedqa-answers"], tmp_path)
    with pytest.raises(ConfigError, match="nowhere: is no folder"):
        read_tasks(["pubmedqa-answers"], tmp_path / "nowhere")


@pytest.fixture(scope="module")
def results():
    tasks = read_tasks(TASK_NAMES, SHARED_DATA)
    return {task.name: evaluate_task(task, BASELINES, np.random.default_rng(0)) for task in tasks}


@real
def test_the_tasks_have_the_sizes_of_their_data(results):
    assert tuple(results) == TASK_NAMES
    sizes = {
        name: (len(r.task.queries), len(r.task.documents), r.task.num_gold)
        for name, r in results.items()
    }
    assert [len(r.task.pmids) for r in results.values()] == [1852] * 3 + [1000] * 3 + [554] * 3
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
            assert all(one.micro.low > 1.5 * result.chance.micro for one in result.scorers), name
    for dataset in ("pubmedqa-answers", "bioasq-snippets"):
        assert all(one.micro.low > 0.7 for one in results[dataset].scorers)


@real
def test_words_say_nothing_about_yes_or_no(results):
    for name in ("pubmedqa-yesno-topk", "bioasq-yesno-topk"):
        for one in results[name].scorers:
            assert one.micro.low < results[name].chance.micro < one.micro.high


@real
def test_tfidf_on_pubmedqa_equals_scikit_learn_alone(results):
    task = results["pubmedqa-answers"].task
    vectorizer = TfidfVectorizer(sublinear_tf=True)
    documents = vectorizer.fit_transform(task.documents)
    score = (vectorizer.transform(task.queries) @ documents.T).toarray()
    assert (
        results["pubmedqa-answers"].scorers[0].micro.value
        == (score.argmax(1) == np.arange(1000)).mean()
    )
