"""The screens of the monitor."""
