"""X-FACTR's decoders against loops over single queries, with a language model that is a function of the whole text."""
