"""Commands for jobs: submit, status, list, history, tail, dead, and actions on one or many jobs.

`views/filters.py` turns the filter options into queries, and `views/bulk.py` has the actions. A new command also needs
a line in the table of `cli/root.py`.
"""
