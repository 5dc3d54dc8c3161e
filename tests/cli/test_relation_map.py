"""Maps of pairs: which are shown, where they lie, the figure and the table of its points."""
