"""Small stores of sentences whose words carry entities and relations."""
