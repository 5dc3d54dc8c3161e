"""The files of downstream tasks, a layout each, sound and broken."""
