"""Articles and their citations, in the three layouts, sound and broken."""
