"""Detection settings for a wanted rate of false alarms, from history in which nothing was wrong."""
