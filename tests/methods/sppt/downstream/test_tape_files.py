"""TAPE's files, as LMDB and as JSON."""
