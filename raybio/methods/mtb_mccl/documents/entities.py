"""Documents as readers return them, and the entities that their mentions refer to.

Shape letters, of one document: M mentions, E entities, C (mention, entity) links, P relations.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from raybio.store.quarantine import Quarantine
from raybio.store.relation_labels import NAMED_NA, NO_RELATION, SELF_RELATION

TYPES = ("Gene", "Disease", "Chemical", "Species", "Variant", "CellLine")
"""The common entity types. A pair's head has the earlier type; other types follow by name."""

_NAMES_BY_TYPE = {
    "Gene": "Gene GeneOrGeneProduct GeneProduct Protein",
    "Disease": "Disease DiseaseOrPhenotypicFeature SpecificDisease DiseaseClass CompositeMention "
    "Modifier",
    "Chemical": "Chemical ChemicalEntity Drug",
    "Species": "Species OrganismTaxon Organism",
    "Variant": "Variant SequenceVariant SNP Mutation DNAMutation ProteinMutation OtherMutation "
    "DNAAllele ProteinAllele DNAAcidChange ProteinAcidChange AcidChange",
    "CellLine": "CellLine Cell",
}

TYPE_BY_NAME = {name: kind for kind, names in _NAMES_BY_TYPE.items() for name in names.split()}
"""Type name in BioRED, PubTator and AIONER's corpora -> common type; unknown types are kept."""

# Kinds of records in the quarantine.
DOCUMENT = "document"
MENTION = "mention"
RELATION = "relation"

# Reasons to skip a record.
OUTSIDE = "mention outside the text"
OTHER_TEXT = "mention's text is not the text at its offsets"
UNKNOWN_ENTITY = "relation of an id that the document does not mention"
REPEATED = "relation listed twice"
SECOND_LABEL = "second relation of a pair that has one (the first is kept)"
SEVERAL_TYPES = "relation of an id that several types share (the first mentioned is taken)"

_UNKNOWN_IDS = {"", "-", "-1"}
_PREFIX = re.compile(
    r"(?:mesh|ncbi ?gene|geneid|ncbitaxon|taxonomy|cellosaurus|tmvar)\s*:\s*", re.IGNORECASE
)
_SPECIES_SUFFIX = re.compile(r"\(tax:[0-9]*\)$", re.IGNORECASE)

# tmVar appends attributes of a variant: "p|SUB|V|600|E;Gene:673;RS#:113488022;VariantGroup:0".
_ATTRIBUTE = re.compile(
    r";\s*(?:RS#|CA#|HGVS|VariantGroup|(?:Corresponding)?(?:Gene|Species|Disease)):"
)
_RS_NUMBER = re.compile(r";\s*RS#:\s*([0-9]+)")


@dataclass(frozen=True)
class Mention:
    """A mention of an entity in a document.

    Attributes:
        start: offset of its first character in the document's text.
        end: offset behind its last character.
        type: type, as the corpus names it.
        ids: ids of its entities, as ``split_ids`` returns them: id -> as the file writes it. Empty
            if unknown.
    """

    start: int
    end: int
    type: str
    ids: Mapping[str, str]


@dataclass(frozen=True)
class RawDocument:
    """A document as a reader returns it.

    Attributes:
        document_id: unique in its corpus: a PMID, or a title.
        text: the text that the mentions' offsets refer to.
        mentions: mentions, checked against the text.
        relations: (label, id, id), not checked.
        line: first line of the document in its file, from 1.
        is_docred: ids are numbers within the document, relations have a direction, and a pair may
            have several. Otherwise ids are those of a knowledge base, and an unordered pair has at
            most one relation.
        passage_starts: offset of each passage, such as title and abstract.
    """

    document_id: str
    text: str
    mentions: tuple[Mention, ...]
    relations: tuple[tuple[str, str, str], ...]
    line: int
    is_docred: bool = False
    passage_starts: tuple[int, ...] = field(default=(0,), compare=False)


@dataclass(frozen=True)
class EntityDocument:
    """A document's entities, numbered in the order of their first mentions.

    Attributes:
        spans_M: distinct (start, end) of the mentions, ascending.
        links_C: (mention, entity), ascending.
        types_E: types of the entities; see ``TYPES``.
        keys_E: identities across documents: "Disease:D003924", or "Disease:~its name" if no id is
            known.
        written_ids_E: the id as the file writes it at the entity's first mention
            ("MESH:D003924"); the number of the vertex in DocRED; "" if unknown.
        relations_P: (head, tail, label).
    """

    spans_M: tuple[tuple[int, int], ...]
    links_C: tuple[tuple[int, int], ...]
    types_E: tuple[str, ...]
    keys_E: tuple[str, ...]
    written_ids_E: tuple[str, ...]
    relations_P: tuple[tuple[int, int, str], ...]


def resolve_entities(raw: RawDocument, quarantine: Quarantine, file: str) -> EntityDocument:
    """Group mentions into entities, and resolve the ids of relations.

    - Mentions with the same type and id are one entity; a mention with several ids belongs to
      several entities. Mentions without a known id are one entity if type and lower-cased text are
      equal.
    - In DocRED the id alone decides. The first mention gives the type and the name by which
      other documents know the entity, since there is no id of a knowledge base.
    - An undirected relation is stored in one order: by type (see ``type_rank``), then by first
      mention.

    Args:
        raw: the document.
        quarantine: receives relations that are skipped.
        file: name of the document's file, for messages.
    """
    number_by_span: dict[tuple[int, int], int] = {}
    number_by_group: dict[tuple[str, str], int] = {}
    numbers_by_id: dict[str, list[int]] = {}
    types: list[str] = []
    keys: list[str] = []
    written_ids: list[str] = []
    links: dict[tuple[int, int], None] = {}
    for mention in sorted(raw.mentions, key=lambda mention: (mention.start, mention.end)):
        span = number_by_span.setdefault((mention.start, mention.end), len(number_by_span))
        kind = TYPE_BY_NAME.get(mention.type, mention.type)
        name = id_of_name(raw.text[mention.start : mention.end])
        for entity_id in mention.ids or (name,):
            group = ("" if raw.is_docred else kind, entity_id)
            if group not in number_by_group:
                number_by_group[group] = len(types)
                numbers_by_id.setdefault(entity_id, []).append(len(types))
                types.append(kind)
                keys.append(f"{kind}:{name if raw.is_docred else entity_id}")
                written_ids.append(mention.ids.get(entity_id, ""))
            links[span, number_by_group[group]] = None
    return EntityDocument(
        spans_M=tuple(number_by_span),
        links_C=tuple(sorted(links)),
        types_E=tuple(types),
        keys_E=tuple(keys),
        written_ids_E=tuple(written_ids),
        relations_P=_resolve_relations(raw, numbers_by_id, types, quarantine, file),
    )


def type_rank(kind: str) -> tuple[int, str]:
    """Return a sort key for types: common types in the order of ``TYPES``, then others by name."""
    return (TYPES.index(kind) if kind in TYPES else len(TYPES)), kind


def split_ids(column: str) -> dict[str, str]:
    """Split a mention's column of ids at ``,`` and ``;``, never at ``|``.

    BioRED relates mentions such as ``D015458|D016399`` as one entity.

    Ids are normalized: prefixes that name the knowledge base (``MESH:D003924``) and the species of
    genes (``7157(Tax:9606)``) are removed. A variant with tmVar's attributes has one id: its dbSNP
    number, or else its notation.

    Returns:
        Normalized id -> id as written. For a variant with tmVar's attributes, that is the whole
        column.
    """
    if _ATTRIBUTE.search(column):
        rs_number = _RS_NUMBER.search(column)
        variant_id = f"rs{rs_number[1]}" if rs_number else column.split(";")[0]
        written_by_id = {normalized_id(variant_id): column.strip()}
    else:
        written_by_id = {}
        for part in re.split("[,;]", column):
            written_by_id.setdefault(normalized_id(part), part.strip())
    for unknown in _UNKNOWN_IDS:
        written_by_id.pop(unknown, None)
    return written_by_id


def id_of_name(name: str) -> str:
    """Return the id of an entity without one."""
    return "~" + " ".join(name.lower().split())


def normalized_id(text: str) -> str:
    """Return an id in the form that is equal across corpora."""
    plain = _SPECIES_SUFFIX.sub("", _PREFIX.sub("", text.strip(), count=1)).strip()
    return plain.replace("OMIM_", "OMIM:", 1) if plain.startswith("OMIM_") else plain


def mention_fault(text: str, start: int, end: int, name: str) -> str | None:
    """Return why a mention ``name`` cannot be at these offsets of a text; None if it can."""
    if not 0 <= start < end <= len(text):
        return OUTSIDE
    return None if text[start:end] == name else OTHER_TEXT


def _resolve_relations(
    raw: RawDocument,
    numbers_by_id: dict[str, list[int]],
    types: list[str],
    quarantine: Quarantine,
    file: str,
) -> tuple[tuple[int, int, str], ...]:
    quarantine.saw(RELATION, len(raw.relations))
    labels_by_pair: dict[tuple[int, int], list[str]] = {}
    for label, first_id, second_id in raw.relations:
        first, second = (_entities(end_id, numbers_by_id) for end_id in (first_id, second_id))
        detail = f"{raw.document_id}: {label} {first_id} {second_id}"
        if not (first and second):
            quarantine.add(RELATION, UNKNOWN_ENTITY, file, raw.line, detail)
            continue
        if len(first) > 1 or len(second) > 1:
            quarantine.add(RELATION, SEVERAL_TYPES, file, raw.line, detail, is_bad=False)
        head = first[0]
        tail = second[0]
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


def _entities(written_id: str, numbers_by_id: dict[str, list[int]]) -> list[int]:
    """Return the entities with the id that a relation names; none if it names several ids."""
    if written_id in numbers_by_id:
        return numbers_by_id[written_id]
    ids = list(split_ids(written_id))
    return numbers_by_id.get(ids[0], []) if len(ids) == 1 else []
