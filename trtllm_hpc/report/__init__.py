"""Reports: tables for the terminal and for files, HTML reports, traces."""
