"""The encoder of entity pairs against loops over its formulas, and windows against ATLOP's rule."""
