"""SPPT's synthetic experiments as a sweep: the table and its figures."""
