"""NSQ pipelines on Spark: archive topics to tables, replay and aggregate them.

The command is `gnsq-pipeline` (`cli`). The functions of `archive`, `replay` and `rollup` take and return DataFrames,
for other programs; the other modules run and report queries.
"""
