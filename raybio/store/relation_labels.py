"""Names that corpora of relations share."""

CALLED_NA = "relation called NA (no relation)"


WITH_ITSELF = "relation of an entity with itself"


NO_RELATION = "NA"
