"""Fingerprints of errors as Spark columns, equal to those that `millrace dead` shows.

The rules are those of views/fingerprint.py, as Java regular expressions; a test compares the two.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from millrace.views.fingerprint import LENGTH

MOST_TEXT = 500
_VARIES = (
    r"(?iU)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|0x[0-9a-f]+"
    r"|\b(?=[a-f]*\d)[0-9a-f]{8,}\b"
    r"|'[^']*'|\"[^\"]*\""
    r"|\d+"
)


def cause(error_type: Column, error_message: Column) -> Column:
    """Return the error in one line, without the parts that vary from job to job; null if there was no error."""
    message = F.regexp_replace(F.coalesce(error_message, F.lit("")), r"(?sU)^\s+|\s+$|\n.*", "")
    text = F.concat(
        F.coalesce(error_type, F.lit("")),
        F.lit(": "),
        F.regexp_replace(F.substring(message, 1, MOST_TEXT), _VARIES, "…"),
    )
    return F.when(error_type.isNotNull(), F.regexp_replace(text, "^[: ]+|[: ]+$", ""))


def fingerprint(task: Column, reason: Column, cause: Column) -> Column:
    """Return a hash that is equal for failures with the same task, reason and cause; null if `cause` is null."""
    text = F.concat_ws("\0", task, F.coalesce(reason, F.lit("")), cause)
    return F.when(cause.isNotNull(), F.substring(F.sha2(text, 256), 1, LENGTH))
