"""`python -m svoo` is the `svoo` command."""

from svoo.cli import main

main()
