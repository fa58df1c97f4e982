"""The report of one measurement: one HTML file that opens without a network."""
