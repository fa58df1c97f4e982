"""Reports: tables for the terminal and for files, and HTML reports."""
