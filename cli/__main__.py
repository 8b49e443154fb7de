"""`python -m holdfast.cli`: the `holdfast` command where its script is not on PATH."""

from holdfast.cli.main import run as main

if __name__ == "__main__":
    main()
