"""The commands of `millrace pipeline`, which run on Spark. The implementation is in `millrace.spark`.

`group.py` has the table of commands. `options.py` has the options that the commands share, and starts the Spark
session. The help imports every module of this package, so import Spark only inside functions.
"""
