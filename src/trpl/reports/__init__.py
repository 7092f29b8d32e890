"""Statistics, tables, figures and the report page, from run folders alone."""
