"""``evaluate.py link-samples``: text encoders judged on samples of test graphs."""
