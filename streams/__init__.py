"""Where data moves: the judge, the Faust workers, the framer, sources, the embedded stack, the command line."""
