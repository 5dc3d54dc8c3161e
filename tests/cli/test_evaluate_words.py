"""``evaluate.py entities-relations`` and ``sentence-graphs``: runs of models of words, judged."""
