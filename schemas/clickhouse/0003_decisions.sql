-- The decision log. `tx` is the identity of a decision: the same evidence judged again gives the same one.
CREATE TABLE IF NOT EXISTS decisions
(
    t              DateTime64(3, 'UTC')           CODEC(DoubleDelta, ZSTD(1)),
    pool           LowCardinality(String),
    scope          LowCardinality(String),
    subject        LowCardinality(String),
    state          LowCardinality(String),
    gen            UInt64                         CODEC(ZSTD(1)),
    epoch          UInt64                         CODEC(ZSTD(1)),
    seq            UInt64                         CODEC(Delta, ZSTD(1)),
    tx             String                         CODEC(ZSTD(1)),
    action         LowCardinality(String),
    admit_ratio    Float64                        CODEC(ZSTD(1)),
    reason         String                         CODEC(ZSTD(1)),
    mode           LowCardinality(String),
    capped         Bool                           CODEC(ZSTD(1)),
    latched        Bool                           CODEC(ZSTD(1)),
    not_after      Nullable(DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
    policy_version LowCardinality(String),
    window_end     DateTime64(3, 'UTC')           CODEC(DoubleDelta, ZSTD(1)),
    evidence       String                         CODEC(ZSTD(1)),
    src_topic      LowCardinality(String),
    src_partition  UInt32                         CODEC(ZSTD(1)),
    src_offset     UInt64                         CODEC(Delta, ZSTD(1)),
    src_idx        UInt32                         CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(src_offset)
PARTITION BY toYYYYMM(t)
ORDER BY (pool, scope, subject, t, tx)
TTL toDateTime(t) + INTERVAL 400 DAY
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000, fsync_after_insert = 1;
