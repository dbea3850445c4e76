"""Log lines for programs."""

import json
import logging
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, where it comes from, message.

    >>> record = logging.LogRecord("a", logging.INFO, "", 0, "round %d", (3,), None)
    >>> json.loads(JsonLines().format(record))["message"]
    'round 3'
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {
            "time": at,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        return json.dumps(fields)
