"""`inferd bench serve`: load on a running daemon, as its clients put it there, and what they would measure."""
