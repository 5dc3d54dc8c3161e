"""Broken, torn and evil files of citations: each gives its good articles or an error that names the file, and soon."""
