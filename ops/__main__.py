"""The operator's command line: `./carride`, or `python -m ops`."""

from ops.cli.app import main

main()
