"""The commands of gnsq-pipeline, one module for each, loaded by name when it is used (`cli.COMMANDS`)."""
