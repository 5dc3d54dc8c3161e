"""Small documents of DocRED's form whose wording tells the relations of two entities: none, one or two."""
