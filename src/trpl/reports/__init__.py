"""What is shown: statistics, tables, figures and the report page, from run folders only."""
