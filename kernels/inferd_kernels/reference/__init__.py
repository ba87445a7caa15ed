"""Plain torch versions of every kernel: the oracle of tests and the fallback of devices."""
