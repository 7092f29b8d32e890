"""A run: collect, learn, evaluate and record, in a folder that can be resumed."""
