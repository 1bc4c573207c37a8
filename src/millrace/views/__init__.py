"""The text and JSON that people see, defined once for the command line, the web API and the report.

These are mostly pure functions of jobs, events and settings, plus the filters and bulk actions that the command line
and the web API share. Change a field's name or format here, not in `cli/` or `web/`.
"""
