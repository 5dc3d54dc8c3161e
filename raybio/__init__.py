"""raybio: pre-train, fine-tune, probe and tune biomedical encoders on a Ray cluster."""

__version__ = "0.1.0"
