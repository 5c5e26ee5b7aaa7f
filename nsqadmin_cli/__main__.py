"""`python -m nsqadmin_cli` is `gnsqadmin`."""

from nsqadmin_cli.cli import main

main()
