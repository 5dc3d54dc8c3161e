"""A real PostgreSQL of a test's own, on the loopback, with a password."""
