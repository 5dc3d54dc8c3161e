"""Train word embeddings by relation graphs: ``raybio train relation_graphs`` as a script."""

from launch import main

if __name__ == "__main__":
    main("train", "relation_graphs")
