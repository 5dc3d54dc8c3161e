"""A small benchmark in MedLAMA's layout, and masked language models whose answers are known."""
