"""NSQ pipelines on Spark: archive topics to Parquet, replay them, roll them up, and look into backlogs and spools.

The command is `gnsq-pipeline` (`cli`, `commands/`). What it does with data are functions from DataFrame to DataFrame
(`archive_layout`, `replay`, `rollup`, `json_bodies`, `backlog`), for use in pipelines of one's own; the rest is how an
archive holds together (`archive`, `file_log`, `files`, `compaction`) and how a run shows itself (`running`, `progress`,
`display`, `metrics`).
"""
