"""What a trained encoder is judged by."""
