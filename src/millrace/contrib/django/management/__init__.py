"""The management commands of the integration."""
