"""Measurements that a user may repeat."""
