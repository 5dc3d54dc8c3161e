"""Fine-tune on labeled relations: ``raybio train relation_finetune`` as a script."""

from launch import main

if __name__ == "__main__":
    main("train", "relation_finetune")
