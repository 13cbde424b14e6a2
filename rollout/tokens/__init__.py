"""Turn messages into token ids, and ids into messages."""
