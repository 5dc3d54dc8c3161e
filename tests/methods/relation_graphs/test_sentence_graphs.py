"""True and false graphs of a sentence, by the paper's rule and by the authors' code's."""
