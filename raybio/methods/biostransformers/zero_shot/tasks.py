"""The zero-shot tasks of BioSTransformers: which texts ask, which are ranked, and which are right.

The paper leaves most of this open; each builder says in its protocol, which is printed with the numbers, how it reads
the paper (facts §5.2). Their names, and which of them stand for a data set, are in ``names``.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from raybio.core.errors import ConfigError, DataError
from raybio.methods.biostransformers.zero_shot.datasets import (
    HALLMARKS,
    TAXONOMY,
    BioasqQuestion,
    ClassPath,
    HallmarkDocument,
    PubMedQuestion,
    read_bioasq,
    read_hallmarks,
    read_pmids,
    read_pubmedqa,
)
from raybio.methods.biostransformers.zero_shot.names import DATA_SETS
from raybio.methods.biostransformers.zero_shot.scores import Task, YesNoTask, ZeroShotTask

HALLMARK_DESCRIPTIONS: Mapping[str, str] = {
    "Sustaining proliferative signaling": "cancer cells keep giving themselves the signals to grow and divide",
    "Evading growth suppressors": "cancer cells circumvent the programmes that would stop their proliferation",
    "Resisting cell death": "cancer cells escape apoptosis and other forms of programmed cell death",
    "Enabling replicative immortality": "cancer cells keep their telomeres and divide without limit or senescence",
    "Inducing angiogenesis": "tumours cause new blood vessels to grow that supply them",
    "Activating invasion and metastasis": "cancer cells invade adjacent tissue and spread to distant organs",
    "Genomic instability and mutation": "damaged or badly repaired DNA lets cancer cells gather mutations",
    "Tumor promoting inflammation": "inflammatory cells and oxidative stress help tumours to arise and progress",
    "Cellular energetics": "cancer cells change their metabolism, as by glycolysis in the presence of oxygen",
    "Avoiding immune destruction": "cancer cells escape or suppress the immune system",
}
"""A sentence for each hallmark, ours, after Hanahan and Weinberg (2011)."""


_R_PRECISION = "The first |G| documents of a query are taken, |G| = the number of its gold documents (R-precision = F1)."


_YES_NO = (
    'Each question is scored with its own text; "yes" is said of the K highest scores, K = the number of questions '
    'whose answer is yes; F1 of "yes". Saying yes to all, without reading, would give {:.3f}.'
)


_PUBMEDQA = (
    "A question of PubMedQA is often its article's own title; nothing was filtered. A model that was trained on "
    "PubMed, or on pairs that jobs/prepare.py made of this very file, has read questions and contexts (beside MeSH "
    "terms, never beside answers)."
)


def hallmark_task(
    documents: Sequence[HallmarkDocument],
    *,
    all_classes: bool = False,
    pmids: Collection[str] | None = None,
    descriptions: Mapping[str, str] | None = None,
) -> ZeroShotTask:
    """Classes of the Hallmarks of Cancer as queries, abstracts as documents.

    Args:
        documents: all documents of the corpus.
        all_classes: ask for all 37 classes of the taxonomy rather than the 10 hallmarks.
        pmids: search these documents alone, such as those of a test split.
        descriptions: what follows a hallmark's name in its query, such as ``HALLMARK_DESCRIPTIONS``.

    Raises:
        DataError: if ``pmids`` names a document that is not there.
    """
    missing = set(pmids or ()) - {document.pmid for document in documents}
    if missing:
        raise DataError(
            f"{len(missing)} of {len(set(pmids or ()))} PMIDs of the list are not among the {len(documents)} abstracts "
            f"of the corpus, the first: {min(missing)}. Take them out, or give the corpus that the list was made for"
        )
    searched = [document for document in documents if pmids is None or document.pmid in pmids]
    classes = TAXONOMY if all_classes else tuple((name,) for name in HALLMARKS)
    gold = [
        [row for row, document in enumerate(searched) if path in document.classes]
        for path in classes
    ]
    scope = (
        "all abstracts of the corpus" if pmids is None else "only the abstracts of the given list"
    )
    protocol = (
        f"Query: {'each of the 37 classes of the taxonomy' if all_classes else 'each of the 10 hallmarks'}, "
        f"its name{'' if descriptions is None else ' and, where there is one, a description'}. Documents: {scope}. "
        "Gold: abstracts with a sentence of that class or of one below it. "
    )
    if all_classes:
        protocol += "Two names (Cell cycle, Immune response) stand below two hallmarks each, so they ask alike. "
    if not all(gold):
        protocol += f"{sum(not rows for rows in gold)} classes have no abstract among these and are left out. "
    variant = ("" if descriptions is None else "-described") + ("" if pmids is None else "-listed")
    return ZeroShotTask.of(
        ("hoc-37" if all_classes else "hoc-10") + variant,
        "HoC",
        [_class_query(path, descriptions or {}) for path in classes],
        [document.text for document in searched],
        gold,
        protocol + _R_PRECISION,
        _pmids(document.pmid for document in searched),
    )


def pubmedqa_answers(questions: Sequence[PubMedQuestion]) -> ZeroShotTask:
    """Questions, and the long answers of all questions."""
    return _pubmedqa_retrieval(
        "pubmedqa-answers",
        "long answers of all questions",
        questions,
        [one.long_answer for one in questions],
    )


def pubmedqa_contexts(questions: Sequence[PubMedQuestion]) -> ZeroShotTask:
    """Questions, and the abstracts (without conclusion) of all questions."""
    documents = "abstracts of all questions, without their conclusion"
    return _pubmedqa_retrieval(
        "pubmedqa-contexts", documents, questions, [one.context for one in questions]
    )


def _pubmedqa_retrieval(
    name: str, documents: str, questions: Sequence[PubMedQuestion], texts: Sequence[str]
) -> ZeroShotTask:
    pool, gold = _pool([[text] for text in texts])
    protocol = (
        f"Query: question. Documents: the {documents}; gold: its own. {_R_PRECISION} {_PUBMEDQA}"
    )
    asked = [one.question for one in questions]
    return ZeroShotTask.of(
        name, "PubMedQA", asked, pool, gold, protocol, _pmids(one.pmid for one in questions)
    )


def pubmedqa_yesno_topk(questions: Sequence[PubMedQuestion]) -> YesNoTask:
    """Questions with their abstracts, "yes" or not; "maybe" is not.

    Raises:
        DataError: for a question without a decision, or if none is "yes".
    """
    undecided = [one.pmid for one in questions if one.decision is None]
    if undecided:
        raise DataError(
            f"{len(undecided)} questions have no decision, the first: {undecided[0]}; want PQA-L"
        )
    is_yes_Q = np.array([one.decision == "yes" for one in questions])
    return YesNoTask(
        "pubmedqa-yesno-topk",
        "PubMedQA",
        tuple(one.question for one in questions),
        tuple(one.context for one in questions),
        f'{_yes_no_protocol(is_yes_Q)} Text: the abstract without its conclusion. "maybe" counts as not yes. '
        f"{_PUBMEDQA}",
        is_yes_Q,
        pmids=_pmids(one.pmid for one in questions),
    )


def bioasq_snippets(questions: Sequence[BioasqQuestion]) -> ZeroShotTask:
    """Yes/no questions, and the snippets of all of them."""
    asked = _yes_no(questions)
    texts = [[snippet.text for snippet in one.snippets] for one in asked]
    return _bioasq_retrieval("bioasq-snippets", "snippets", asked, texts)


def bioasq_ideal_answers(questions: Sequence[BioasqQuestion]) -> ZeroShotTask:
    """Yes/no questions, and the ideal answers of all of them."""
    asked = _yes_no(questions)
    return _bioasq_retrieval(
        "bioasq-ideal-answers", "ideal answers", asked, [one.ideal_answers for one in asked]
    )


def _bioasq_retrieval(
    name: str, documents: str, asked: Sequence[BioasqQuestion], texts_of: Sequence[Sequence[str]]
) -> ZeroShotTask:
    pool, gold = _pool(texts_of)
    protocol = (
        f"Query: yes/no question. Documents: the distinct {documents} of all yes/no questions; gold: its own. "
        f"{_R_PRECISION}"
    )
    return ZeroShotTask.of(
        name, "BioASQ", [one.body for one in asked], pool, gold, protocol, _snippet_pmids(asked)
    )


def bioasq_yesno_topk(questions: Sequence[BioasqQuestion]) -> YesNoTask:
    """Yes/no questions with their snippets in one text, "yes" or not.

    Raises:
        DataError: if there is no yes/no question whose answer is yes.
    """
    asked = _yes_no(questions)
    is_yes_Q = np.array([bool(one.is_yes) for one in asked])
    return YesNoTask(
        "bioasq-yesno-topk",
        "BioASQ",
        tuple(one.body for one in asked),
        tuple(" ".join(snippet.text for snippet in one.snippets) for one in asked),
        f"{_yes_no_protocol(is_yes_Q)} Text: the question's snippets, joined in their order.",
        is_yes_Q,
        pmids=_snippet_pmids(asked),
    )


_READERS: Mapping[str, Callable[[Path], Sequence[Any]]] = {
    "hoc": read_hallmarks,
    "pubmedqa": read_pubmedqa,
    "bioasq": read_bioasq,
}


_BUILDERS: Mapping[str, Callable[..., Task]] = {
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


def read_tasks(names: Collection[str], data: Path, *, hoc_pmids: Path | None = None) -> list[Task]:
    """Read tasks from a data folder.

    Args:
        names: of tasks, as ``task_names`` gives them.
        data: the folder that holds the data sets.
        hoc_pmids: a list of PMIDs; each task of the Hallmarks of Cancer is asked over these abstracts alone as well.

    Raises:
        ConfigError: if a data set is not there, or there is a list but no task for it.
        DataError: for a file that is not of the form.
    """
    if not data.is_dir():
        raise ConfigError(
            f"--data {data}: is no folder; want the one that holds hallmarks_of_cancer/ and the others"
        )
    wanted = {key: [name for name in one.tasks if name in names] for key, one in DATA_SETS.items()}
    if hoc_pmids is not None and not wanted["hoc"]:
        raise ConfigError(
            f"--hoc-pmids {hoc_pmids}: no task of hoc is asked for; add hoc to --tasks, or leave it out"
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
    places = DATA_SETS[key].places
    found = [data / place for place in places if (data / place).exists()]
    if not found:
        raise ConfigError(f"--data {data}: holds no {key}; want {' or '.join(places)} in it")
    return found[0]


def _class_query(path: ClassPath, descriptions: Mapping[str, str]) -> str:
    description = descriptions.get(path[0]) if len(path) == 1 else None
    return path[-1] if description is None else f"{path[-1]}: {description}"


def _yes_no_protocol(is_yes_Q: np.ndarray) -> str:
    """With the F1 of saying yes to all: precision is the share of yes, recall 1."""
    share = float(is_yes_Q.mean())
    return _YES_NO.format(2 * share / (1 + share))


def _yes_no(questions: Sequence[BioasqQuestion]) -> list[BioasqQuestion]:
    """Yes/no questions that have a snippet."""
    asked = [one for one in questions if one.type == "yesno" and one.snippets]
    if not asked:
        raise DataError(
            f"none of {len(questions)} BioASQ questions is a yes/no question with snippets"
        )
    return asked


def _pool(texts_of: Sequence[Sequence[str]]) -> tuple[list[str], list[list[int]]]:
    """Distinct texts in order of appearance (nothing could tell equal ones apart), and which belong to each query."""
    row_by_text: dict[str, int] = {}
    gold = [
        [row_by_text.setdefault(text, len(row_by_text)) for text in texts] for texts in texts_of
    ]
    return list(row_by_text), gold


def _snippet_pmids(questions: Sequence[BioasqQuestion]) -> frozenset[int]:
    return _pmids(
        snippet.document.rpartition("/")[2] for one in questions for snippet in one.snippets
    )


def _pmids(texts: Iterable[str]) -> frozenset[int]:
    return frozenset(int(text) for text in texts if text.isascii() and text.isdigit())
