"""Where telemetry comes from besides Kafka: files of JSON lines, CSV and Parquet."""
