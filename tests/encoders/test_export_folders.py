"""All kinds of exported folders: who may read their files, and the code in their cards."""
