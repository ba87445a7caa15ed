"""Run in a process of their own with TRITON_INTERPRET=1 (see ../test_interpreted.py); not collected otherwise."""
