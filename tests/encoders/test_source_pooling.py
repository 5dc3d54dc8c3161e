"""``encoder.pooling`` follows the source, a setting wins, and a contradiction is warned about."""
