"""How each system is put to the test: small enough settings, a tiny store, and what it then must achieve."""
