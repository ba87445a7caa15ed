"""Real tiny models through the real engine, held to transformers whatever the mix of levers."""
