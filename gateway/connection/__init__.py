"""One open connection: calls, what servers ask within them, and what comes back, without secrets."""
