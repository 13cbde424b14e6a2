"""One program for each client: opens a session for a trajectory, and calls a tool."""
