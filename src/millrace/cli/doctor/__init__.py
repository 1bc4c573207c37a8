"""`millrace doctor`: checks the settings, the store, its server and the jobs. Each finding says what to do.

There is one module per subject, and each check returns `Finding`s. Add a check to the module of its subject. If you add
a module, call it from `command.py`.
"""
