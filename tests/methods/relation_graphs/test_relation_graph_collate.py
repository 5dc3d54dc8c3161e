"""Steps of CLDR, CLGS and CLNER: which sentences, and what is drawn for them."""
