"""`python -m gatebench` is the `gatebench` command."""

from gatebench.cli import main

if __name__ == "__main__":
    main()
