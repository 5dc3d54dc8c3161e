"""For test_stream.py: streams far more than Ray's object store holds, and one step that is larger than all of it."""
