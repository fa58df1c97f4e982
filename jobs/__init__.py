"""Job files ready to submit, one for each workflow."""
