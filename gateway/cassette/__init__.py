"""Cassettes: recorded calls and answers of servers, replayed without the servers."""
