"""Scores that are made a tile at a time, against scores of whole matrices in double precision."""
