"""Trust-region layers, independent of the framework.

`door` checks the arguments, `problems` are solved and differentiated, `layer` projects, measures and audits, `surface`
is the interface that the layers of all frameworks share.
"""
