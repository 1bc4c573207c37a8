"""Fingerprints of errors as columns: the same as `millrace dead` shows, so that one leads to the other.

The rules are those of runtime/fingerprint.py, in the dialect of Java's regular expressions; a test compares the two.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from millrace.runtime.fingerprint import LENGTH

MOST_TEXT = 500
_VARIES = (
    r"(?iU)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|0x[0-9a-f]+"
    r"|\b(?=[a-f]*\d)[0-9a-f]{8,}\b"
    r"|'[^']*'|\"[^\"]*\""
    r"|\d+"
)


def cause(error_type: Column, error_message: Column) -> Column:
    """The error in one line, without what varies from job to job; null where there was none."""
    message = F.regexp_replace(F.coalesce(error_message, F.lit("")), r"(?sU)^\s+|\s+$|\n.*", "")
    text = F.concat(
        F.coalesce(error_type, F.lit("")),
        F.lit(": "),
        F.regexp_replace(F.substring(message, 1, MOST_TEXT), _VARIES, "…"),
    )
    return F.when(error_type.isNotNull(), F.regexp_replace(text, "^[: ]+|[: ]+$", ""))


def fingerprint(task: Column, reason: Column, cause: Column) -> Column:
    """Equal for runs of one task that failed of the same cause; null where nothing failed."""
    text = F.concat_ws("\0", task, F.coalesce(reason, F.lit("")), cause)
    return F.when(cause.isNotNull(), F.substring(F.sha2(text, 256), 1, LENGTH))
