"""The Faust workers: judge and archive, their transport, snapshots, decision log and watchdog."""
