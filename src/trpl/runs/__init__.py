"""One run: collect, learn, evaluate, record, in a folder that can be resumed."""
