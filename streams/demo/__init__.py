"""The demo: the whole pipeline on one machine with a simulated fleet, and a story told from what its topics say."""
