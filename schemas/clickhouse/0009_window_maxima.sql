-- Which series were worst in a time range, without reading all hours of all series: two projections of window_hours, which
-- ClickHouse keeps with each part, so an insert writes both or neither and a batch that comes twice changes nothing.
-- `by_time` is for ranges of hours, where the order of the table (series, then time) would read the whole month; `by_day` is a
-- twenty-fourth of the rows, for whole days. A merge folds rows, so it makes both anew.
ALTER TABLE window_hours MODIFY SETTING deduplicate_merge_projection_mode = 'rebuild';

ALTER TABLE window_hours ADD PROJECTION IF NOT EXISTS by_time
(
    SELECT t, pool, sli, node, kl_service_nats, kl_mix_nats, evidence_margin, p999_s, threshold_s
    ORDER BY t, pool, sli, node
);

ALTER TABLE window_hours ADD PROJECTION IF NOT EXISTS by_day
(
    SELECT
        toStartOfDay(t), pool, sli, node,
        max(p999_s / threshold_s), max(kl_service_nats), max(kl_mix_nats), max(evidence_margin)
    GROUP BY toStartOfDay(t), pool, sli, node
);

-- What was stored before. It runs behind: until it is done, older parts are read as before.
ALTER TABLE window_hours MATERIALIZE PROJECTION by_time;

ALTER TABLE window_hours MATERIALIZE PROJECTION by_day;

-- The highest values of each series over the hours of a time range: exactly max() over window_hours, as the projections give it.
-- SELECT ... FROM window_maxima(from_s = 1767225600, to_s = 1767312000) WHERE pool = '...'. Whole days come from `by_day`, the rest
-- of the first and the last day from `by_time`. `p999_ratio` is P99.9 over its threshold, 1 where they meet.
CREATE VIEW IF NOT EXISTS window_maxima AS
SELECT
    pool, node, sli, max(ratio) AS p999_ratio, max(service_nats) AS kl_service_nats, max(mix_nats) AS kl_mix_nats,
    max(margin) AS evidence_margin
FROM
(
    SELECT
        pool, node, sli, max(p999_s / threshold_s) AS ratio, max(kl_service_nats) AS service_nats, max(kl_mix_nats) AS mix_nats,
        max(evidence_margin) AS margin
    FROM window_hours
    WHERE toStartOfDay(t) >= toStartOfDay(toDateTime({from_s:UInt32}, 'UTC') + INTERVAL 86399 SECOND)
        AND toStartOfDay(t) < toStartOfDay(toDateTime({to_s:UInt32}, 'UTC'))
    GROUP BY pool, node, sli
    UNION ALL
    SELECT
        pool, node, sli, p999_s / threshold_s AS ratio, kl_service_nats AS service_nats, kl_mix_nats AS mix_nats,
        evidence_margin AS margin
    FROM window_hours
    WHERE t >= toStartOfHour(toDateTime({from_s:UInt32}, 'UTC')) AND t <= toDateTime({to_s:UInt32}, 'UTC')
        AND (
            t < toStartOfDay(toDateTime({from_s:UInt32}, 'UTC') + INTERVAL 86399 SECOND)
            OR t >= toStartOfDay(toDateTime({to_s:UInt32}, 'UTC'))
        )
)
GROUP BY pool, node, sli;
