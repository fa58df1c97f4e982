"""What a person reads of a run: tables, as objects for a terminal and as plain text."""
