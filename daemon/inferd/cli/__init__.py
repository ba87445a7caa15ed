"""The `inferd` command: one file a subcommand, each imported only when it is called."""
