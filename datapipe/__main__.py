"""`python -m datapipe` is the `datapipe` command."""

from datapipe.cli import main

main()
