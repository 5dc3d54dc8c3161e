"""How long a run takes, by numbers alone: no clock is read here."""
