"""Problem sets that others publish: their rows become problems of ours, and curation drops those not worth having."""
