"""Embed proteins or texts: ``raybio embed`` as a script."""

from launch import main

if __name__ == "__main__":
    main("embed")
