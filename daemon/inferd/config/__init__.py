"""Configuration: typed schema, TOML layers, origins."""
