"""`python -m svoo` is the `svoo` command."""

from svoo.app.cli import main

main()
