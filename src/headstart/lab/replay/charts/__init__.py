"""The charts of a replay's report: inline SVG, drawn once for a desk and once for a phone."""
