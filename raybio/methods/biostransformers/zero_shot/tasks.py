"""Zero-shot tasks of BioSTransformers: queries, documents and gold of each data set.

The paper leaves most of this open. Each builder states its reading of the paper in a protocol,
which is printed with the numbers. ``names`` lists the tasks.

Shape letters: Q queries.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from raybio.core.errors import ConfigError, DataError
from raybio.methods.biostransformers.zero_shot.datasets.bioasq import BioasqQuestion, read_bioasq
from raybio.methods.biostransformers.zero_shot.datasets.hallmarks import (
    HALLMARKS,
    TAXONOMY,
    ClassPath,
    HallmarkDocument,
    read_hallmarks,
    read_pmids,
)
from raybio.methods.biostransformers.zero_shot.datasets.pubmedqa import (
    PubMedQuestion,
    read_pubmedqa,
)
from raybio.methods.biostransformers.zero_shot.names import DATA_SETS
from raybio.methods.biostransformers.zero_shot.ranking import RankingTask, RetrievalTask, YesNoTask

HALLMARK_DESCRIPTIONS: Mapping[str, str] = {
    "Sustaining proliferative signaling": (
        "cancer cells keep giving themselves the signals to grow and divide"
    ),
    "Evading growth suppressors": (
        "cancer cells circumvent the programmes that would stop their proliferation"
    ),
    "Resisting cell death": (
        "cancer cells escape apoptosis and other forms of programmed cell death"
    ),
    "Enabling replicative immortality": (
        "cancer cells keep their telomeres and divide without limit or senescence"
    ),
    "Inducing angiogenesis": "tumours cause new blood vessels to grow that supply them",
    "Activating invasion and metastasis": (
        "cancer cells invade adjacent tissue and spread to distant organs"
    ),
    "Genomic instability and mutation": (
        "damaged or badly repaired DNA lets cancer cells gather mutations"
    ),
    "Tumor promoting inflammation": (
        "inflammatory cells and oxidative stress help tumours to arise and progress"
    ),
    "Cellular energetics": (
        "cancer cells change their metabolism, as by glycolysis in the presence of oxygen"
    ),
    "Avoiding immune destruction": "cancer cells escape or suppress the immune system",
}
"""Our description of each hallmark, after Hanahan and Weinberg (2011). They are part of queries."""

_R_PRECISION = (
    "The first |G| documents of a query count, |G| = the number of its gold documents "
    "(R-precision = F1)."
)

_YES_NO = (
    'Each question is scored with its own text; the K highest scores are answered "yes", K = the '
    'number of questions whose answer is yes; F1 of "yes". Answering yes to all questions would '
    "give {:.3f}."
)

_PUBMEDQA = (
    "A question of PubMedQA is often its article's own title; nothing was filtered. A model "
    "trained on PubMed, or on pairs that `raybio prepare pairs` made from this file, has read "
    "questions and contexts (with MeSH terms, never with answers)."
)


def hallmark_task(
    documents: Sequence[HallmarkDocument],
    *,
    all_classes: bool = False,
    pmids: Collection[str] | None = None,
    descriptions: Mapping[str, str] | None = None,
) -> RetrievalTask:
    """Return the task with classes of the Hallmarks of Cancer as queries, abstracts as documents.

    Args:
        documents: all documents of the corpus.
        all_classes: queries are all 37 classes of the taxonomy instead of the 10 hallmarks.
        pmids: search only these documents, such as a test split.
        descriptions: texts appended to a hallmark's name, such as ``HALLMARK_DESCRIPTIONS``.

    Raises:
        DataError: if ``pmids`` names a document that is not in the corpus.
    """
    missing = set(pmids or ()) - {document.pmid for document in documents}
    if missing:
        raise DataError(
            f"{len(missing)} of {len(set(pmids or ()))} PMIDs of the list are not among the "
            f"{len(documents)} abstracts of the corpus, the first: {min(missing)}. Take them out, "
            "or give the corpus that the list was made for"
        )
    searched = [document for document in documents if pmids is None or document.pmid in pmids]
    classes = TAXONOMY if all_classes else tuple((name,) for name in HALLMARKS)
    gold = [_rows_of_class(searched, path) for path in classes]
    name = "hoc-37" if all_classes else "hoc-10"
    if descriptions is not None:
        name += "-described"
    if pmids is not None:
        name += "-listed"
    protocol = _hallmark_protocol(
        all_classes=all_classes,
        has_descriptions=descriptions is not None,
        is_listed=pmids is not None,
        num_empty=sum(not rows for rows in gold),
    )
    return RetrievalTask.of(
        name,
        "HoC",
        [_class_query(path, descriptions or {}) for path in classes],
        [document.text for document in searched],
        gold,
        protocol,
        _pmids(document.pmid for document in searched),
    )


def _rows_of_class(documents: Sequence[HallmarkDocument], path: ClassPath) -> list[int]:
    return [row for row, document in enumerate(documents) if path in document.classes]


def _hallmark_protocol(
    *, all_classes: bool, has_descriptions: bool, is_listed: bool, num_empty: int
) -> str:
    classes = (
        "each of the 37 classes of the taxonomy" if all_classes else "each of the 10 hallmarks"
    )
    name = "its name and, if there is one, a description" if has_descriptions else "its name"
    scope = "only the abstracts of the given list" if is_listed else "all abstracts of the corpus"
    sentences = [
        f"Query: {classes}, {name}. Documents: {scope}.",
        "Gold: abstracts with a sentence of that class or of a class below it.",
    ]
    if all_classes:
        sentences.append(
            "Two names (Cell cycle, Immune response) occur below two hallmarks each, so their "
            "queries are equal."
        )
    if num_empty:
        sentences.append(f"{num_empty} classes have no abstract among these and are omitted.")
    return " ".join([*sentences, _R_PRECISION])


def pubmedqa_answers(questions: Sequence[PubMedQuestion]) -> RetrievalTask:
    """Return the task with questions as queries, the long answers of all questions as documents."""
    answers = [question.long_answer for question in questions]
    return _pubmedqa_retrieval(
        "pubmedqa-answers", "long answers of all questions", questions, answers
    )


def pubmedqa_contexts(questions: Sequence[PubMedQuestion]) -> RetrievalTask:
    """Return the task with questions as queries, the abstracts of all questions as documents."""
    documents = "abstracts of all questions, without their conclusion"
    contexts = [question.context for question in questions]
    return _pubmedqa_retrieval("pubmedqa-contexts", documents, questions, contexts)


def _pubmedqa_retrieval(
    name: str, documents: str, questions: Sequence[PubMedQuestion], texts: Sequence[str]
) -> RetrievalTask:
    pool, gold = _pool([[text] for text in texts])
    protocol = (
        f"Query: question. Documents: the {documents}; gold: its own. {_R_PRECISION} {_PUBMEDQA}"
    )
    queries = [question.question for question in questions]
    pmids = _pmids(question.pmid for question in questions)
    return RetrievalTask.of(name, "PubMedQA", queries, pool, gold, protocol, pmids)


def pubmedqa_yesno_topk(questions: Sequence[PubMedQuestion]) -> YesNoTask:
    """Return the yes/no task of questions with their abstracts; "maybe" counts as not yes.

    Raises:
        DataError: for a question without a decision, or if none is "yes".
    """
    undecided = [question.pmid for question in questions if question.decision is None]
    if undecided:
        raise DataError(
            f"{len(undecided)} questions have no decision, the first: {undecided[0]}; want PQA-L"
        )
    is_yes_Q = np.array([question.decision == "yes" for question in questions])
    protocol = (
        f"{_yes_no_protocol(is_yes_Q)} Text: the abstract without its conclusion. "
        f'"maybe" counts as not yes. {_PUBMEDQA}'
    )
    return YesNoTask(
        "pubmedqa-yesno-topk",
        "PubMedQA",
        tuple(question.question for question in questions),
        tuple(question.context for question in questions),
        protocol,
        is_yes_Q,
        pmids=_pmids(question.pmid for question in questions),
    )


def bioasq_snippets(questions: Sequence[BioasqQuestion]) -> RetrievalTask:
    """Return the task with yes/no questions as queries, the snippets of all as documents."""
    yes_no = _yes_no(questions)
    texts = [[snippet.text for snippet in question.snippets] for question in yes_no]
    return _bioasq_retrieval("bioasq-snippets", "snippets", yes_no, texts)


def bioasq_ideal_answers(questions: Sequence[BioasqQuestion]) -> RetrievalTask:
    """Return the task with yes/no questions as queries, the ideal answers of all as documents."""
    yes_no = _yes_no(questions)
    texts = [question.ideal_answers for question in yes_no]
    return _bioasq_retrieval("bioasq-ideal-answers", "ideal answers", yes_no, texts)


def _bioasq_retrieval(
    name: str,
    documents: str,
    questions: Sequence[BioasqQuestion],
    texts_by_query: Sequence[Sequence[str]],
) -> RetrievalTask:
    pool, gold = _pool(texts_by_query)
    protocol = (
        f"Query: yes/no question. Documents: the distinct {documents} of all yes/no questions; "
        f"gold: its own. {_R_PRECISION}"
    )
    queries = [question.body for question in questions]
    return RetrievalTask.of(
        name, "BioASQ", queries, pool, gold, protocol, _snippet_pmids(questions)
    )


def bioasq_yesno_topk(questions: Sequence[BioasqQuestion]) -> YesNoTask:
    """Return the yes/no task of questions with their snippets, joined to one text.

    Raises:
        DataError: if there is no yes/no question whose answer is yes.
    """
    yes_no = _yes_no(questions)
    is_yes_Q = np.array([bool(question.is_yes) for question in yes_no])
    texts = [" ".join(snippet.text for snippet in question.snippets) for question in yes_no]
    return YesNoTask(
        "bioasq-yesno-topk",
        "BioASQ",
        tuple(question.body for question in yes_no),
        tuple(texts),
        f"{_yes_no_protocol(is_yes_Q)} Text: the question's snippets, joined in their order.",
        is_yes_Q,
        pmids=_snippet_pmids(yes_no),
    )


_READERS: Mapping[str, Callable[[Path], Sequence[Any]]] = {
    "hoc": read_hallmarks,
    "pubmedqa": read_pubmedqa,
    "bioasq": read_bioasq,
}


_BUILDERS: Mapping[str, Callable[..., RankingTask]] = {
    "hoc-10": hallmark_task,
    "hoc-10-described": partial(hallmark_task, descriptions=HALLMARK_DESCRIPTIONS),
    "hoc-37": partial(hallmark_task, all_classes=True),
    "pubmedqa-answers": pubmedqa_answers,
    "pubmedqa-contexts": pubmedqa_contexts,
    "pubmedqa-yesno-topk": pubmedqa_yesno_topk,
    "bioasq-snippets": bioasq_snippets,
    "bioasq-ideal-answers": bioasq_ideal_answers,
    "bioasq-yesno-topk": bioasq_yesno_topk,
}


def read_tasks(
    names: Collection[str], data: Path, *, hoc_pmids: Path | None = None
) -> list[RankingTask]:
    """Return tasks from a data folder.

    Args:
        names: names of tasks, as ``task_names`` returns them.
        data: folder with the data sets.
        hoc_pmids: file of PMIDs; adds a variant of each Hallmarks of Cancer task that searches only
            these abstracts.

    Raises:
        ConfigError: if a data set is missing, or there are PMIDs but no task for them.
        DataError: for an invalid file.
    """
    if not data.is_dir():
        raise ConfigError(
            f"--data {data}: is no folder; want the one that holds hallmarks_of_cancer/ and the "
            "others"
        )
    wanted = {
        key: [name for name in data_set.tasks if name in names]
        for key, data_set in DATA_SETS.items()
    }
    if hoc_pmids is not None and not wanted["hoc"]:
        raise ConfigError(
            f"--hoc-pmids {hoc_pmids}: there is no task of hoc; add hoc to --tasks, or leave it out"
        )
    pmids = None if hoc_pmids is None else read_pmids(hoc_pmids)
    files = {key: _find(key, data) for key in DATA_SETS if wanted[key]}
    tasks = []
    for key, file in files.items():
        records = _READERS[key](file)
        tasks += [_BUILDERS[name](records) for name in wanted[key]]
        if key == "hoc" and pmids is not None:
            tasks += [_BUILDERS[name](records, pmids=pmids) for name in wanted[key]]
    return tasks


def _find(key: str, data: Path) -> Path:
    paths = DATA_SETS[key].paths
    for path in paths:
        if (data / path).exists():
            return data / path
    raise ConfigError(f"--data {data}: holds no {key}; want {' or '.join(paths)} in it")


def _class_query(path: ClassPath, descriptions: Mapping[str, str]) -> str:
    description = descriptions.get(path[0]) if len(path) == 1 else None
    return path[-1] if description is None else f"{path[-1]}: {description}"


def _yes_no_protocol(is_yes_Q: np.ndarray) -> str:
    """Return the protocol with the F1 of answering yes to all: precision = prior, recall = 1."""
    share = float(is_yes_Q.mean())
    return _YES_NO.format(2 * share / (1 + share))


def _yes_no(questions: Sequence[BioasqQuestion]) -> list[BioasqQuestion]:
    """Return the yes/no questions that have a snippet."""
    yes_no = [question for question in questions if question.type == "yesno" and question.snippets]
    if not yes_no:
        raise DataError(
            f"none of {len(questions)} BioASQ questions is a yes/no question with snippets"
        )
    return yes_no


def _pool(texts_by_query: Sequence[Sequence[str]]) -> tuple[list[str], list[list[int]]]:
    """Return the distinct texts in order of appearance, and the rows of each query's texts.

    Equal texts are one document, since no scorer could distinguish them.
    """
    row_by_text: dict[str, int] = {}
    for texts in texts_by_query:
        for text in texts:
            row_by_text.setdefault(text, len(row_by_text))
    gold = [[row_by_text[text] for text in texts] for texts in texts_by_query]
    return list(row_by_text), gold


def _snippet_pmids(questions: Sequence[BioasqQuestion]) -> frozenset[int]:
    snippets = [snippet for question in questions for snippet in question.snippets]
    return _pmids(snippet.document.rpartition("/")[2] for snippet in snippets)


def _pmids(texts: Iterable[str]) -> frozenset[int]:
    return frozenset(int(text) for text in texts if text.isascii() and text.isdigit())
