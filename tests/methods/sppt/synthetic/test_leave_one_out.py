"""Leave-one-out neighbours, against scikit-learn one node at a time."""
