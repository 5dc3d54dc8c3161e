"""The driver decides the precision once: for all runs of a command, and for all of their starts."""
