"""One open connection to a server: calls, the server's requests within them, and redaction of secrets."""
