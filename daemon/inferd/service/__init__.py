"""inferd as a service of systemd: its unit files, and putting them in place."""
