"""Everything that turns messages into token ids."""
