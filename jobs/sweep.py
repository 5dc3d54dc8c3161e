"""Try many settings of a method: ``raybio sweep`` as a script."""

from launch import main

if __name__ == "__main__":
    main("sweep")
