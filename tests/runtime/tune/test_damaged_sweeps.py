"""Records of a sweep and its trials, cut short, zeroed or missing: written again, or refused; never another result."""
