"""A tiny CharacterBERT as its authors publish theirs: a pickle, BERT's settings, and their names of weights."""
