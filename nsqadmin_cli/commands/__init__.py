"""The commands of gnsqadmin, one module per group."""
