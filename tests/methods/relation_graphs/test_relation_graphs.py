"""CLDR, CLGS and CLNER against loops over the paper's equations."""
