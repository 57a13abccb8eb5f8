-- One row per series (pool, node, SLI) and tick: what was measured and what the thresholds were. Times are event time.
-- Row identity is the sorting key, (pool, node, SLI, t), by the hour: a time range is read without the rest of its day, and the
-- rows of a series lie together all the same. A row that comes again (a retry, a judge that restarted) replaces itself, the one further
-- on in the log wins. Tokens of inserts are remembered so that a retry is not even written twice. The TTL counts event time: a row
-- older than that is gone as soon as it is written.
CREATE TABLE IF NOT EXISTS windows
(
    t               DateTime64(3, 'UTC')    CODEC(DoubleDelta, ZSTD(1)),
    pool            LowCardinality(String),
    node            LowCardinality(String),
    sli             LowCardinality(String),
    status          LowCardinality(String),
    baseline        LowCardinality(String),
    direction       LowCardinality(String),
    n               UInt32                  CODEC(Delta, ZSTD(1)),
    n_tick          UInt32                  CODEC(Delta, ZSTD(1)),
    kl_nats         Nullable(Float32)       CODEC(Gorilla, ZSTD(1)),
    kl_mix_nats     Nullable(Float32)       CODEC(Gorilla, ZSTD(1)),
    kl_service_nats Nullable(Float32)       CODEC(Gorilla, ZSTD(1)),
    shift_nats      Nullable(Float32)       CODEC(Gorilla, ZSTD(1)),
    log_evidence    Nullable(Float32)       CODEC(Gorilla, ZSTD(1)),
    log_threshold   Nullable(Float32)       CODEC(Gorilla, ZSTD(1)),
    alarm           Bool                    CODEC(ZSTD(1)),
    improved        Bool                    CODEC(ZSTD(1)),
    mix_alarm       Bool                    CODEC(ZSTD(1)),
    tail_above      Bool                    CODEC(ZSTD(1)),
    p999_s          Nullable(Float32)       CODEC(Gorilla, ZSTD(1)),
    p999_lo_s       Nullable(Float32)       CODEC(Gorilla, ZSTD(1)),
    p999_hi_s       Nullable(Float32)       CODEC(Gorilla, ZSTD(1)),
    p999_kind       LowCardinality(String),
    threshold_s     Nullable(Float32)       CODEC(Gorilla, ZSTD(1)),
    slo_s           Nullable(Float32)       CODEC(Gorilla, ZSTD(1)),
    dynamic_slo_s   Nullable(Float32)       CODEC(Gorilla, ZSTD(1)),
    src_topic       LowCardinality(String),
    src_partition   UInt32                  CODEC(ZSTD(1)),
    src_offset      UInt64                  CODEC(Delta, ZSTD(1)),
    src_idx         UInt32                  CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(src_offset)
PARTITION BY toDate(t)
ORDER BY (toStartOfHour(t), pool, node, sli, t)
TTL toDateTime(t) + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;
