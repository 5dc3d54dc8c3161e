"""Documents in which entities are mentioned, as readers give them, and what entities they are about.

Shape letters: M mentions, E entities, C (mention, entity) links, P relations, of one document.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from raybio.store.quarantine import Quarantine
from raybio.store.relation_labels import NAMED_NA, NO_RELATION, SELF_RELATION

TYPES = ("Gene", "Disease", "Chemical", "Species", "Variant", "CellLine")
"""The types that corpora share, in the order in which a pair's head comes before its tail; others follow by name."""


_CALLED = {
    "Gene": "Gene GeneOrGeneProduct GeneProduct Protein",
    "Disease": "Disease DiseaseOrPhenotypicFeature SpecificDisease DiseaseClass CompositeMention Modifier",
    "Chemical": "Chemical ChemicalEntity Drug",
    "Species": "Species OrganismTaxon Organism",
    "Variant": "Variant SequenceVariant SNP Mutation DNAMutation ProteinMutation OtherMutation DNAAllele ProteinAllele "
    "DNAAcidChange ProteinAcidChange AcidChange",
    "CellLine": "CellLine Cell",
}


TYPE_BY_NAME = {name: kind for kind, names in _CALLED.items() for name in names.split()}
"""What BioRED, PubTator and AIONER's corpora call a type -> our name of it; unknown types keep theirs."""


DOCUMENT, MENTION, RELATION = "document", "mention", "relation"


OUTSIDE = "mention outside the text"


OTHER_TEXT = "mention's text is not the text at its offsets"


NO_ENTITY = "relation of an id that the document does not mention"


REPEATED = "relation listed twice"


SECOND_LABEL = "second relation of a pair that has one (the first is kept)"


SEVERAL_TYPES = "relation of an id that several types share (the first mentioned is taken)"


UNKNOWN_IDS = {"", "-", "-1"}


PREFIX = re.compile(
    r"(?:mesh|ncbi ?gene|geneid|ncbitaxon|taxonomy|cellosaurus|tmvar)\s*:\s*", re.IGNORECASE
)


SPECIES_SUFFIX = re.compile(r"\(tax:[0-9]*\)$", re.IGNORECASE)


# tmVar's ids carry what is known about the variant: "p|SUB|V|600|E;Gene:673;RS#:113488022;VariantGroup:0".
ATTRIBUTE = re.compile(
    r";\s*(?:RS#|CA#|HGVS|VariantGroup|(?:Corresponding)?(?:Gene|Species|Disease)):"
)


RS_NUMBER = re.compile(r";\s*RS#:\s*([0-9]+)")


@dataclass(frozen=True)
class Mention:
    """Where a document names an entity.

    Attributes:
        start: offset of its first character in the document's text.
        end: offset behind its last character.
        type: as the corpus calls it.
        ids: of what it names, as ``split_ids`` returns them: id -> as the file writes it. Empty where they are unknown.
    """

    start: int
    end: int
    type: str
    ids: Mapping[str, str]


@dataclass(frozen=True)
class RawDocument:
    """A document as a reader found it.

    Attributes:
        document_id: unique in its corpus: a PMID, or a title.
        text: what the offsets of the mentions count in.
        mentions: their texts were compared with the text.
        relations: (label, id, id), not checked.
        line: where it begins in its file, from 1.
        is_docred: ids are numbers within the document, relations have a direction and a pair may have several. Else
            ids are those of a knowledge base, and an unordered pair has one relation at most.
    """

    document_id: str
    text: str
    mentions: tuple[Mention, ...]
    relations: tuple[tuple[str, str, str], ...]
    line: int
    is_docred: bool = False


@dataclass(frozen=True)
class EntityDocument:
    """A document's entities, numbered in the order in which they are first mentioned.

    Attributes:
        spans_M: (start, end) of each place with a mention, ascending; mentions at the same place are one.
        links_C: (mention, entity), ascending.
        types_E: types of the entities, see ``TYPES``.
        keys_E: identities across documents: "Disease:D003924", or "Disease:~its name" where no id is known.
        written_ids_E: as the file writes the id at the entity's first mention: "MESH:D003924"; a vertex's number in
            DocRED; "" where no id is known.
        relations_P: (head, tail, label).
    """

    spans_M: tuple[tuple[int, int], ...]
    links_C: tuple[tuple[int, int], ...]
    types_E: tuple[str, ...]
    keys_E: tuple[str, ...]
    written_ids_E: tuple[str, ...]
    relations_P: tuple[tuple[int, int, str], ...]


def resolve_entities(raw: RawDocument, quarantine: Quarantine, file: str) -> EntityDocument:
    """Group mentions into entities and resolve the relations' ids.

    Mentions of one type and id are one entity; a mention with several ids belongs to several. Without a known id, those
    of one type and lower-cased text are one. In DocRED the id alone decides, and the first mention gives the type and
    the name by which other documents know the entity, since there is no id of a knowledge base.

    A relation without direction is stored in one order: by type (see ``type_rank``), then by first mention.

    Args:
        raw: the document.
        quarantine: takes relations that cannot be kept.
        file: its file's name, for messages.
    """
    number_by_span: dict[tuple[int, int], int] = {}
    number_by_group: dict[tuple[str, str], int] = {}
    numbers_by_id: dict[str, list[int]] = {}
    types, keys, written_ids = list[str](), list[str](), list[str]()
    links = dict[tuple[int, int], None]()
    for mention in sorted(raw.mentions, key=lambda one: (one.start, one.end)):
        span = number_by_span.setdefault((mention.start, mention.end), len(number_by_span))
        kind = TYPE_BY_NAME.get(mention.type, mention.type)
        name = "~" + " ".join(raw.text[mention.start : mention.end].lower().split())
        for one in mention.ids or (name,):
            group = ("" if raw.is_docred else kind, one)
            if group not in number_by_group:
                number_by_group[group] = len(types)
                numbers_by_id.setdefault(one, []).append(len(types))
                types.append(kind)
                keys.append(f"{kind}:{name if raw.is_docred else one}")
                written_ids.append(mention.ids.get(one, ""))
            links[span, number_by_group[group]] = None
    relations = _resolved(raw, numbers_by_id, types, quarantine, file)
    return EntityDocument(
        tuple(number_by_span),
        tuple(sorted(links)),
        tuple(types),
        tuple(keys),
        tuple(written_ids),
        relations,
    )


def type_rank(kind: str) -> tuple[int, str]:
    """Place of a type in the order of types."""
    return (TYPES.index(kind) if kind in TYPES else len(TYPES)), kind


def split_ids(column: str) -> dict[str, str]:
    """Split a mention's column of ids at ``,`` and ``;``, never at ``|``, as corpora agree.

    A prefix that says the knowledge base is taken off where the type says as much (``MESH:D003924``), the species from
    genes (``7157(Tax:9606)``). A variant with tmVar's attributes has one id: its dbSNP number, or else its notation.

    Returns:
        id -> as the column writes it, each id once. A variant with tmVar's attributes is written as the whole column.
    """
    if ATTRIBUTE.search(column):
        rs_number = RS_NUMBER.search(column)
        variant_id = f"rs{rs_number[1]}" if rs_number else column.split(";")[0]
        written_by_id = {normalized_id(variant_id): column.strip()}
    else:
        written_by_id = {}
        for part in re.split("[,;]", column):
            written_by_id.setdefault(normalized_id(part), part.strip())
    return {one: written for one, written in written_by_id.items() if one not in UNKNOWN_IDS}


def normalized_id(text: str) -> str:
    """An id as corpora agree on it."""
    plain = SPECIES_SUFFIX.sub("", PREFIX.sub("", text.strip(), count=1)).strip()
    return plain.replace("OMIM_", "OMIM:", 1) if plain.startswith("OMIM_") else plain


def mention_fault(text: str, start: int, end: int, name: str) -> str | None:
    """Why a mention called ``name`` cannot stand there in a text; None if it can."""
    if not 0 <= start < end <= len(text):
        return OUTSIDE
    return None if text[start:end] == name else OTHER_TEXT


def _resolved(
    raw: RawDocument,
    numbers_by_id: dict[str, list[int]],
    types: list[str],
    quarantine: Quarantine,
    file: str,
) -> tuple[tuple[int, int, str], ...]:
    quarantine.saw(RELATION, len(raw.relations))
    labels_by_pair: dict[tuple[int, int], list[str]] = {}
    for label, *ids in raw.relations:
        found = [numbers_by_id.get(normalized_id(one), []) for one in ids]
        detail = f"{raw.document_id}: {label} {ids[0]} {ids[1]}"
        if not all(found):
            quarantine.add(RELATION, NO_ENTITY, file, raw.line, detail)
            continue
        if any(len(numbers) > 1 for numbers in found):
            quarantine.add(RELATION, SEVERAL_TYPES, file, raw.line, detail, is_bad=False)
        head, tail = found[0][0], found[1][0]
        if not raw.is_docred:
            head, tail = sorted((head, tail), key=lambda number: (type_rank(types[number]), number))
        labels = labels_by_pair.setdefault((head, tail), [])
        reason = ""
        if label == NO_RELATION:
            reason = NAMED_NA
        elif head == tail:
            reason = SELF_RELATION
        elif label in labels:
            reason = REPEATED
        elif labels and not raw.is_docred:
            reason = SECOND_LABEL
        if reason:
            quarantine.add(RELATION, reason, file, raw.line, detail, is_bad=False)
        else:
            labels.append(label)
    return tuple((*pair, label) for pair, labels in labels_by_pair.items() for label in labels)
