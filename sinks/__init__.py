"""Where results go: ClickHouse, Redis, dead letters. Depends on `schemas` only."""
