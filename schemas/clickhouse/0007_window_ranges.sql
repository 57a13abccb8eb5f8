-- Highest values of each series over any time range, at the resolution that suits it: up to 6 hours as stored, beyond by the hour.
-- SELECT ... FROM window_ranges(from_s = 1767225600, to_s = 1767312000) WHERE pool = '...'; the unused half is never read.
-- Without FINAL: a row that is there twice has the same maximum. A range that ends within an hour shows that hour whole.
CREATE VIEW IF NOT EXISTS window_ranges AS
SELECT t, pool, node, sli, kl_service_nats, kl_mix_nats, log_evidence - log_threshold AS evidence_margin, p999_s, threshold_s, slo_s
FROM windows
WHERE {to_s:UInt32} - {from_s:UInt32} <= 21600
    AND t >= toDateTime({from_s:UInt32}, 'UTC') AND t <= toDateTime({to_s:UInt32}, 'UTC')
UNION ALL
SELECT t, pool, node, sli, kl_service_nats, kl_mix_nats, evidence_margin, p999_s, threshold_s, slo_s
FROM window_hours
WHERE {to_s:UInt32} - {from_s:UInt32} > 21600
    AND t >= toStartOfHour(toDateTime({from_s:UInt32}, 'UTC')) AND t <= toDateTime({to_s:UInt32}, 'UTC');
