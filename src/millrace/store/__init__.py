"""Stores: where jobs are kept. One protocol, several backends, chosen by URL."""
