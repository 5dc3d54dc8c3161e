"""Search spaces: everything that is wrong with one is found when it is read."""
