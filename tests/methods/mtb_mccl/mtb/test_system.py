"""The forms of L_rel that the paper compares, in the system and on real processes."""
