"""What users write: server entries, their files, variables and selections, and what is wrong with them."""
