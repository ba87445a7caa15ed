"""Loading: checkpoints of both kinds, their vocabularies, the model store, fetching, the cache of packed weights."""
