"""Three classifiers on frozen pairs, against other ways to compute them, and the command that fits them."""
