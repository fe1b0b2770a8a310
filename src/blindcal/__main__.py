"""``python -m blindcal``: the command line, where its own command is not on the path."""

from blindcal.cli import main

if __name__ == "__main__":
    main()
