"""Relation extraction where a pair may have several relations, as in DocRED: trained, exported and judged again."""
