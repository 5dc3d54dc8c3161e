"""What neighbours tell, against loops; and what the paper's theory says of graphs and embeddings."""
