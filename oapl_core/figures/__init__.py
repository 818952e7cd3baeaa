"""Run folders -> figures, CSVs and pages that set runs, or the arms of a comparison, side by side."""
