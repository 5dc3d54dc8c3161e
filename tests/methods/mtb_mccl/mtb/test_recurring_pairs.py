"""Recurring pairs, couples and blanked batches, against loops over the tiny documents."""
