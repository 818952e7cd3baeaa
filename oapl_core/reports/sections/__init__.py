"""Sections of a report, a file each with its template; found by name, the kind `section` of oapl_core/plugins."""
