"""Writing rows into stores from Spark."""
