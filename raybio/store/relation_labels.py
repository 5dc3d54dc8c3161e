"""Names that all corpora of relations share."""

NO_RELATION = "NA"
"""Label of a pair without a relation; never stored."""

NAMED_NA = "relation called NA (no relation)"
"""Why a relation is skipped: its label is ``NO_RELATION``."""

SELF_RELATION = "relation of an entity with itself"
"""Why a relation is skipped: head and tail are one entity."""
