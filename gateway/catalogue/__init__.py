"""The tools that the policy sees: selection, names, descriptions, and the lock that pins them."""
