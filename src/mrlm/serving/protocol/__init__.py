"""The wire protocol: messages, statuses, security."""
