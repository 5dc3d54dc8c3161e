"""A small probe benchmark with the fields of ``raybio.methods.contrastive_probe.benchmark.medlama.ProbeBenchmark``, drawn at random."""

from dataclasses import dataclass

import numpy as np

RELATIONS = ("has_part", "may_treat", "nobody_asks", "occurs_after")


@dataclass(frozen=True)
class SmallQuestions:
    relations: tuple[str, ...]
    prompts: tuple[str, ...]
    names: tuple[str, ...]
    is_tail_C: np.ndarray
    is_tail_RC: np.ndarray
    relation_Q: np.ndarray
    head_Q: np.ndarray
    indptr_Q1: np.ndarray
    answer_P: np.ndarray
    cuis: tuple[str, ...]
    cui_indptr_C1: np.ndarray
    cui_E: np.ndarray

    def queries(self, mask_token: str) -> list[str]:
        return [
            self.prompts[relation].replace("[X]", self.names[head]).replace("[Y]", mask_token)
            for relation, head in zip(self.relation_Q, self.head_Q, strict=True)
        ]


def questions_of(asked, names, cuis_by_name=None, relations=RELATIONS) -> SmallQuestions:
    """From (relation, head, answers) with names for numbers; each name has a concept of its own unless told."""
    cuis_by_name = cuis_by_name or {name: [f"C{number:03d}"] for number, name in enumerate(names)}
    cuis = sorted({cui for found in cuis_by_name.values() for cui in found})
    answers = [sorted(names.index(answer) for answer in right) for _, _, right in asked]
    concepts = [sorted(cuis.index(cui) for cui in cuis_by_name[name]) for name in names]
    answer_P = np.array([answer for right in answers for answer in right], np.int32)
    return SmallQuestions(
        relations=tuple(relations),
        prompts=tuple(f"[X] {relation.replace('_', ' ')} [Y] ." for relation in relations),
        names=tuple(names),
        is_tail_C=np.isin(np.arange(len(names)), answer_P),
        is_tail_RC=np.array(
            [
                [any(of == one and name in right for of, _, right in asked) for name in names]
                for one in relations
            ]
        ),
        relation_Q=np.array([relations.index(relation) for relation, _, _ in asked], np.int16),
        head_Q=np.array([names.index(head) for _, head, _ in asked], np.int32),
        indptr_Q1=np.cumsum([0, *map(len, answers)]),
        answer_P=answer_P,
        cuis=tuple(cuis),
        cui_indptr_C1=np.cumsum([0, *map(len, concepts)]),
        cui_E=np.array([cui for found in concepts for cui in found], np.int32),
    )


def random_questions(num_queries: int = 60, num_names: int = 40, seed: int = 0) -> SmallQuestions:
    """Three of four relations are asked; some queries have their head among the answers, some names share a concept."""
    rng = np.random.default_rng(seed)
    names = sorted(
        {"a" * int(rng.integers(1, 30)) + f" {number:03d}" for number in range(num_names)}
    )
    asked = []
    for _ in range(num_queries):
        right = rng.choice(num_names, int(rng.integers(1, 5)), replace=False)
        relation = ("has_part", "may_treat", "occurs_after")[int(rng.integers(3) ** 2 / 2)]
        asked.append(
            (relation, names[int(rng.integers(num_names))], [names[place] for place in right])
        )
    cuis = {
        name: [f"C{int(cui):03d}" for cui in set(rng.integers(0, 25, int(rng.integers(0, 3))))]
        for name in names
    }
    return questions_of(asked, names, cuis | {names[0]: ["C001", "C002"]})
