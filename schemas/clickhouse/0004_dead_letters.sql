-- Input that could not be used, with its bytes. `origin_*` says where it came from, `src_*` where it lies in the dead letters;
-- `count` is the number of events in it that were refused.
-- A message that is dead-lettered twice (a worker died in between) is one row: so its time is no part of the identity.
CREATE TABLE IF NOT EXISTS dead_letters
(
    t                DateTime64(3, 'UTC')    CODEC(Delta(8), ZSTD(1)),
    stage            LowCardinality(String),
    reason           LowCardinality(String),
    detail           String                  CODEC(ZSTD(1)),
    origin_topic     LowCardinality(String),
    origin_partition Int32                   CODEC(ZSTD(1)),
    origin_offset    Int64                   CODEC(Delta, ZSTD(1)),
    origin_ms        Int64                   CODEC(Delta, ZSTD(1)),
    raw              String                  CODEC(ZSTD(1)),
    size_bytes       UInt64                  CODEC(ZSTD(1)),
    truncated        Bool                    CODEC(ZSTD(1)),
    sha256           String                  CODEC(ZSTD(1)),
    attempts         UInt32                  CODEC(ZSTD(1)),
    count            UInt32                  CODEC(ZSTD(1)),
    src_topic        LowCardinality(String),
    src_partition    UInt32                  CODEC(ZSTD(1)),
    src_offset       UInt64                  CODEC(Delta, ZSTD(1)),
    src_idx          UInt32                  CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(src_offset)
PARTITION BY toYYYYMM(t)
ORDER BY (stage, reason, origin_topic, origin_partition, origin_offset, sha256)
TTL toDateTime(t) + INTERVAL 90 DAY
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;
