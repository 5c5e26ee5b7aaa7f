"""`python -m gnsq_pipeline`, and the file that is given to `spark-submit`."""

from gnsq_pipeline.cli import main

if __name__ == "__main__":
    main()
