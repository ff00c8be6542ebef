"""Where the time goes: meters, verdicts, reports."""
