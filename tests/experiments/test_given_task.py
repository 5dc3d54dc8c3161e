"""A downstream task on the command line."""
