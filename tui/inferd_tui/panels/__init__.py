"""The parts of the dashboard: one widget a file, each drawn from the newest `Frame` alone."""
