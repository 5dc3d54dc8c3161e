"""Entities and relations by neighbours, and whether true graphs are nearest, against loops."""
