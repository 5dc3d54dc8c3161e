"""The zero-shot tasks of BioSTransformers: which texts ask, which are ranked, and which are right.

The paper leaves most of this open; each builder says in its protocol, which is printed with the numbers, how it reads
the paper (facts §5.2). The headline tasks are ``hoc-10``, ``pubmedqa-answers`` and ``bioasq-snippets``.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from raybio.data.bioasq import BioasqQuestion, read_bioasq
from raybio.data.hallmarks import HALLMARKS, TAXONOMY, ClassPath, HallmarkDocument, read_hallmarks
from raybio.data.pubmedqa import PubMedQuestion, read_pubmedqa
from raybio.errors import ConfigError, DataError
from raybio.evaluation.zero_shot import Task, YesNoTask, ZeroShotTask

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

_R_PRECISION = (
    "The first |G| documents of a query are taken, |G| = the number of its gold documents (R-precision = F1)."
)
_YES_NO = (
    'Each question is scored with its own text; "yes" is said of the K highest scores, K = the number of questions '
    'whose answer is yes; F1 of "yes".'
)
_TITLE_LEAK = "A question of PubMedQA is often its article's own title; nothing was filtered."


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
        raise DataError(f"{len(missing)} PMIDs of the list are not in the corpus, the first: {min(missing)}")
    searched = [document for document in documents if pmids is None or document.pmid in pmids]
    classes = TAXONOMY if all_classes else tuple((name,) for name in HALLMARKS)
    scope = "all abstracts of the corpus" if pmids is None else "only the abstracts of the given list"
    protocol = (
        f"Query: {'each of the 37 classes of the taxonomy' if all_classes else 'each of the 10 hallmarks'}, "
        f"its name{'' if descriptions is None else ' and, where there is one, a description'}. Documents: {scope}. "
        "Gold: abstracts with a sentence of that class or of one below it. "
    )
    if all_classes:
        protocol += "Two names (Cell cycle, Immune response) stand below two hallmarks each, so they ask alike. "
    variant = ("" if descriptions is None else "-described") + ("" if pmids is None else "-listed")
    return ZeroShotTask.of(
        ("hoc-37" if all_classes else "hoc-10") + variant,
        "HoC",
        [_class_query(path, descriptions or {}) for path in classes],
        [document.text for document in searched],
        [[row for row, document in enumerate(searched) if path in document.classes] for path in classes],
        protocol + _R_PRECISION,
    )


def pubmedqa_answers(questions: Sequence[PubMedQuestion]) -> ZeroShotTask:
    """Questions, and the long answers of all questions."""
    documents, gold = _pool([[one.long_answer] for one in questions])
    protocol = (
        f"Query: question. Documents: the long answers of all questions; gold: its own. {_R_PRECISION} {_TITLE_LEAK}"
    )
    return ZeroShotTask.of(
        "pubmedqa-answers", "PubMedQA", [one.question for one in questions], documents, gold, protocol
    )


def pubmedqa_contexts(questions: Sequence[PubMedQuestion]) -> ZeroShotTask:
    """Questions, and the abstracts (without conclusion) of all questions."""
    documents, gold = _pool([[one.context] for one in questions])
    protocol = (
        "Query: question. Documents: the abstracts of all questions, without their conclusion; gold: its own. "
        f"{_R_PRECISION} {_TITLE_LEAK}"
    )
    return ZeroShotTask.of(
        "pubmedqa-contexts", "PubMedQA", [one.question for one in questions], documents, gold, protocol
    )


def pubmedqa_yesno_topk(questions: Sequence[PubMedQuestion]) -> YesNoTask:
    """Questions with their abstracts, "yes" or not; "maybe" is not.

    Raises:
        DataError: for a question without a decision, or if none is "yes".
    """
    undecided = [one.pmid for one in questions if one.decision is None]
    if undecided:
        raise DataError(f"{len(undecided)} questions have no decision, the first: {undecided[0]}; want PQA-L")
    return YesNoTask(
        "pubmedqa-yesno-topk",
        "PubMedQA",
        tuple(one.question for one in questions),
        tuple(one.context for one in questions),
        f'{_YES_NO} Text: the abstract without its conclusion. "maybe" counts as not yes. {_TITLE_LEAK}',
        np.array([one.decision == "yes" for one in questions]),
    )


def bioasq_snippets(questions: Sequence[BioasqQuestion]) -> ZeroShotTask:
    """Yes/no questions, and the snippets of all of them."""
    asked = _yes_no(questions)
    documents, gold = _pool([[snippet.text for snippet in one.snippets] for one in asked])
    protocol = (
        "Query: yes/no question. Documents: the distinct snippets of all yes/no questions; gold: its own. "
        + _R_PRECISION
    )
    return ZeroShotTask.of("bioasq-snippets", "BioASQ", [one.body for one in asked], documents, gold, protocol)


def bioasq_ideal_answers(questions: Sequence[BioasqQuestion]) -> ZeroShotTask:
    """Yes/no questions, and the ideal answers of all of them."""
    asked = _yes_no(questions)
    documents, gold = _pool([one.ideal_answers for one in asked])
    protocol = (
        "Query: yes/no question. Documents: the distinct ideal answers of all yes/no questions; gold: its own. "
        + _R_PRECISION
    )
    return ZeroShotTask.of("bioasq-ideal-answers", "BioASQ", [one.body for one in asked], documents, gold, protocol)


def bioasq_yesno_topk(questions: Sequence[BioasqQuestion]) -> YesNoTask:
    """Yes/no questions with their snippets in one text, "yes" or not.

    Raises:
        DataError: if there is no yes/no question whose answer is yes.
    """
    asked = _yes_no(questions)
    return YesNoTask(
        "bioasq-yesno-topk",
        "BioASQ",
        tuple(one.body for one in asked),
        tuple(" ".join(snippet.text for snippet in one.snippets) for one in asked),
        f"{_YES_NO} Text: the question's snippets, joined in their order.",
        np.array([bool(one.is_yes) for one in asked]),
    )


_HOC: Mapping[str, Callable[[Sequence[HallmarkDocument]], Task]] = {
    "hoc-10": hallmark_task,
    "hoc-10-described": lambda documents: hallmark_task(documents, descriptions=HALLMARK_DESCRIPTIONS),
    "hoc-37": lambda documents: hallmark_task(documents, all_classes=True),
}
_PUBMEDQA: Mapping[str, Callable[[Sequence[PubMedQuestion]], Task]] = {
    "pubmedqa-answers": pubmedqa_answers,
    "pubmedqa-contexts": pubmedqa_contexts,
    "pubmedqa-yesno-topk": pubmedqa_yesno_topk,
}
_BIOASQ: Mapping[str, Callable[[Sequence[BioasqQuestion]], Task]] = {
    "bioasq-snippets": bioasq_snippets,
    "bioasq-ideal-answers": bioasq_ideal_answers,
    "bioasq-yesno-topk": bioasq_yesno_topk,
}
TASK_NAMES = (*_HOC, *_PUBMEDQA, *_BIOASQ)


def read_tasks(
    *,
    hoc: Path | None = None,
    pubmedqa: Path | None = None,
    bioasq: Path | None = None,
    names: Collection[str] | None = None,
) -> list[Task]:
    """The tasks of the data sets that are given, in the order of ``TASK_NAMES``.

    Args:
        hoc: archive of the Hallmarks of Cancer corpus.
        pubmedqa: ``ori_pqal.json`` or ``.json.gz``.
        bioasq: a golden batch of BioASQ, or a folder of them.
        names: these tasks alone; None: all.

    Raises:
        ConfigError: for a name that is no task, or a task whose data set is not given.
        DataError: for a file that is not of the form.
    """
    unknown = sorted(set(names or ()) - set(TASK_NAMES))
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is no task; want some of {', '.join(TASK_NAMES)}")
    wanted = [name for name in TASK_NAMES if names is None or name in names]
    tasks: list[Task] = []
    if hoc is not None and any(name in _HOC for name in wanted):
        documents = read_hallmarks(hoc)
        tasks += [build(documents) for name, build in _HOC.items() if name in wanted]
    if pubmedqa is not None and any(name in _PUBMEDQA for name in wanted):
        articles = read_pubmedqa(pubmedqa)
        tasks += [build(articles) for name, build in _PUBMEDQA.items() if name in wanted]
    if bioasq is not None and any(name in _BIOASQ for name in wanted):
        questions = read_bioasq(bioasq)
        tasks += [build(questions) for name, build in _BIOASQ.items() if name in wanted]
    without = sorted(set(names or ()) - {task.name for task in tasks})
    if without:
        raise ConfigError(f"task {without[0]!r} needs its data set ({without[0].split('-')[0]}), which was not given")
    return tasks


def _class_query(path: ClassPath, descriptions: Mapping[str, str]) -> str:
    description = descriptions.get(path[0]) if len(path) == 1 else None
    return path[-1] if description is None else f"{path[-1]}: {description}"


def _yes_no(questions: Sequence[BioasqQuestion]) -> list[BioasqQuestion]:
    """Yes/no questions that have a snippet."""
    asked = [one for one in questions if one.type == "yesno" and one.snippets]
    if not asked:
        raise DataError(f"none of {len(questions)} BioASQ questions is a yes/no question with snippets")
    return asked


def _pool(texts_of: Sequence[Sequence[str]]) -> tuple[list[str], list[list[int]]]:
    """Distinct texts in order of appearance (nothing could tell equal ones apart), and which belong to each query."""
    row_by_text: dict[str, int] = {}
    gold = [[row_by_text.setdefault(text, len(row_by_text)) for text in texts] for texts in texts_of]
    return list(row_by_text), gold
