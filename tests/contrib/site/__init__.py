"""A Django site for the tests, with its settings, tasks and pages."""
