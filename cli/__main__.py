"""`python -m holdfast.cli`: the `holdfast` command where its script is not on PATH."""

from holdfast.cli.main import run

if __name__ == "__main__":
    run()
