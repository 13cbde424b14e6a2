"""A page that shows recorded trajectories: runs, conversations, tokens and what the trainer computed, siblings."""
