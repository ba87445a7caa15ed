"""The terminal side of inferd: safe text, units, the plain view, and the monitor."""
