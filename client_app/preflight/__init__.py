"""The steps before a hospital joins: check, dry-run, train-local."""
