"""Parts of a bulk embedding and the joined file: what is verified, and what is forced to the disk when."""
