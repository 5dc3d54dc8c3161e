"""Runs through Ray Train, with faults planted in their workers: what must happen is in each test's name."""
