-- What a person should be told. `id` is a digest of the whole finding: equal findings are one row, different ones never are.
CREATE TABLE IF NOT EXISTS findings
(
    t             DateTime64(3, 'UTC')    CODEC(DoubleDelta, ZSTD(1)),
    pool          LowCardinality(String),
    finding       LowCardinality(String),
    node          LowCardinality(String),
    cause         LowCardinality(String),
    score         Nullable(Float64)       CODEC(ZSTD(1)),
    evidence      String                  CODEC(ZSTD(1)),
    id            UInt64                  CODEC(ZSTD(1)),
    src_topic     LowCardinality(String),
    src_partition UInt32                  CODEC(ZSTD(1)),
    src_offset    UInt64                  CODEC(Delta, ZSTD(1)),
    src_idx       UInt32                  CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(src_offset)
PARTITION BY toYYYYMM(t)
ORDER BY (pool, finding, node, t, id)
TTL toDateTime(t) + INTERVAL 400 DAY
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;
