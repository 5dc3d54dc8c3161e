"""A small synthetic UMLS in the real layout (MRCONSO.RRF, MRREL.RRF, all columns), with what makes the real one hard.

Concepts have a preferred name, a synonym, a Spanish name and an obsolete one; names hold quotes, commas and letters
beyond ASCII. Relations come without atoms, twice, suppressed, of a concept to itself, from other vocabularies, in the
inverse direction, and some heads have more answers than a benchmark takes. Part of the answers stand in their heads'
names, which is what the hardness filter looks for.
"""
