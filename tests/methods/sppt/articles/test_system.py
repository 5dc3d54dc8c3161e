"""SPPT on texts: what is its own beside SPPT on proteins."""
