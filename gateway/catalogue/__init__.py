"""Which tools the policy sees, how they are named and described, and the lock that pins it."""
