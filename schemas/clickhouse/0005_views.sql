-- What dashboards and people read: one row per identity, whatever happened on the way in.
CREATE VIEW IF NOT EXISTS window_history AS
SELECT * FROM windows FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1; -- the time is part of the key: equal rows share a partition

CREATE VIEW IF NOT EXISTS finding_history AS
SELECT * FROM findings FINAL;

CREATE VIEW IF NOT EXISTS dead_letter_history AS
SELECT * FROM dead_letters FINAL;

-- `void`: written by a judge that another one had already replaced; nobody obeys such a decision.
CREATE VIEW IF NOT EXISTS decision_history AS
SELECT
    *,
    (gen, epoch) < max((gen, epoch)) OVER (
        PARTITION BY pool ORDER BY src_partition, src_offset, src_idx ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS void
FROM decisions FINAL;

-- Subjects whose breaker is not closed by the newest decision about them.
CREATE VIEW IF NOT EXISTS breakers AS
SELECT
    pool,
    scope,
    subject,
    argMax(state, (gen, epoch, seq))     AS state,
    argMax(mode, (gen, epoch, seq))      AS mode,
    argMax(reason, (gen, epoch, seq))    AS reason,
    argMax(not_after, (gen, epoch, seq)) AS not_after,
    max(t)                               AS since
FROM decision_history
WHERE NOT void AND NOT capped
GROUP BY pool, scope, subject
HAVING state != 'CLOSED';
