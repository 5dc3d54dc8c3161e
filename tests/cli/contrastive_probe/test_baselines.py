"""The command that asks language models themselves: its report, and what it refuses."""
