"""NSQ pipelines on Spark: archive topics to tables, replay and aggregate them, and inspect backlogs and spools.

The command is `gnsq-pipeline` (`cli`). The functions of `archive`, `replay`, `rollup` and `backlog`
take and return DataFrames, for use in other programs; the other modules run and report queries.
"""
