-- ClickHouse roles with the least rights, for the database `slodrift`. Run it as an administrator, then give every process a user
-- of its own, for example:
--   CREATE USER grafana IDENTIFIED WITH sha256_hash BY '<hash>' HOST IP '10.0.0.0/8' DEFAULT ROLE slodrift_reader;
--   GRANT slodrift_reader TO grafana;

-- `slodrift migrate`: makes and changes tables.
CREATE ROLE IF NOT EXISTS slodrift_setup;
GRANT CREATE DATABASE, CREATE TABLE, CREATE VIEW, ALTER TABLE, ALTER VIEW, SELECT, INSERT ON slodrift.* TO slodrift_setup;

-- The archive: adds rows. It changes and deletes nothing.
CREATE ROLE IF NOT EXISTS slodrift_archive SETTINGS max_execution_time = 30 MIN 1 MAX 60;
GRANT SELECT, INSERT ON slodrift.* TO slodrift_archive;

-- Dashboards, `slodrift explain` and people: read, and may change no setting but the time limit downwards.
CREATE ROLE IF NOT EXISTS slodrift_reader SETTINGS readonly = 2 READONLY, max_execution_time = 30 MIN 1 MAX 60,
    max_result_rows = 1000000, max_memory_usage = 4000000000 MAX 4000000000, max_rows_to_read = 10000000000;
GRANT SELECT ON slodrift.* TO slodrift_reader;

-- The auditor: copies of anchors, and nothing else.
CREATE ROLE IF NOT EXISTS slodrift_auditor SETTINGS max_execution_time = 30 MIN 1 MAX 60;
GRANT SELECT, INSERT ON slodrift.anchors TO slodrift_auditor;
