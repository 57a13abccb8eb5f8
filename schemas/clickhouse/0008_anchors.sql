-- Copies of the audit's signed anchors: what tells that the end of an audit file was cut. `line` is the anchor as it was signed.
-- The auditor's user needs INSERT and SELECT here and nothing else; nobody needs DELETE or ALTER.
CREATE TABLE IF NOT EXISTS anchors
(
    t     DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    fleet LowCardinality(String),
    pool  LowCardinality(String),
    n     UInt64               CODEC(Delta, ZSTD(1)),
    line  String               CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree
ORDER BY (fleet, pool, n, line)
SETTINGS non_replicated_deduplication_window = 10000;
