"""`python -m tests.upgrades.write VERSION`: write the samples of a release."""

import sys

import tests.conftest  # noqa: F401 - sets the environment that the functions read at their import
from tests.upgrades.lived import write

if __name__ == "__main__":
    write(sys.argv[1])
