"""Words of sentences, from pieces of words and from characters."""
