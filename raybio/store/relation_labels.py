"""Names that corpora of relations share."""

NAMED_NA = "relation called NA (no relation)"


SELF_RELATION = "relation of an entity with itself"


NO_RELATION = "NA"
