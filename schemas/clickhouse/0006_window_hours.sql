-- The highest values of each series (pool, node, SLI) in each hour: what long time ranges are drawn from. The archive writes one
-- row here for each window that it stores, and merges fold the rows of an hour into one; `t` is the start of the hour.
-- Maxima alone: a row that comes again changes none of them, where a sum would count it twice. Readers take max() once more,
-- since rows of an hour may still lie in several parts. `worst` is the worst status, 0 none, 1 OK, 2 LEARNING, 3 IDLE,
-- 4 INSUFFICIENT_DATA, 5 STALE, 6 DEGRADED, 7 STALLED.
CREATE TABLE IF NOT EXISTS window_hours
(
    t               DateTime64(3, 'UTC')                           CODEC(DoubleDelta, ZSTD(1)),
    pool            LowCardinality(String),
    node            LowCardinality(String),
    sli             LowCardinality(String),
    worst           SimpleAggregateFunction(max, UInt8)             CODEC(ZSTD(1)),
    n               SimpleAggregateFunction(max, UInt32)            CODEC(ZSTD(1)),
    kl_service_nats SimpleAggregateFunction(max, Nullable(Float32)) CODEC(ZSTD(1)),
    kl_mix_nats     SimpleAggregateFunction(max, Nullable(Float32)) CODEC(ZSTD(1)),
    evidence_margin SimpleAggregateFunction(max, Nullable(Float32)) CODEC(ZSTD(1)),
    p999_s          SimpleAggregateFunction(max, Nullable(Float32)) CODEC(ZSTD(1)),
    threshold_s     SimpleAggregateFunction(max, Nullable(Float32)) CODEC(ZSTD(1)),
    slo_s           SimpleAggregateFunction(max, Nullable(Float32)) CODEC(ZSTD(1)),
    src_topic       SimpleAggregateFunction(max, String)            CODEC(ZSTD(1)),
    src_partition   SimpleAggregateFunction(max, UInt32)            CODEC(ZSTD(1)),
    src_offset      SimpleAggregateFunction(max, UInt64)            CODEC(ZSTD(1)),
    src_idx         SimpleAggregateFunction(max, UInt32)            CODEC(ZSTD(1))
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(t)
ORDER BY (pool, sli, node, t)
TTL toDateTime(t) + INTERVAL 400 DAY
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

-- What was stored before this table was there; a second run changes nothing.
INSERT INTO window_hours (t, pool, node, sli, worst, n, kl_service_nats, kl_mix_nats, evidence_margin, p999_s, threshold_s, slo_s)
SELECT
    toStartOfHour(t) AS hour, pool, node, sli,
    max(indexOf(['OK', 'LEARNING', 'IDLE', 'INSUFFICIENT_DATA', 'STALE', 'DEGRADED', 'STALLED'], status)),
    max(n), max(kl_service_nats), max(kl_mix_nats), max(log_evidence - log_threshold), max(p999_s), max(threshold_s), max(slo_s)
FROM windows
GROUP BY hour, pool, node, sli;
