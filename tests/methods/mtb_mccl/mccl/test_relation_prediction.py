"""Relations that an exported model finds in files, against what it is judged by in a store."""
