"""Settings: read, overridden, compared, and refused with a reason."""
