"""How much of their rows the systems read, by counting tokens one row at a time; and what is refused."""
