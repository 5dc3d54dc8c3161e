"""Expectations over all orders, counted out."""
