"""What a trust-region layer does, once for every framework.

`door` checks the arguments, `problems` are what is solved and differentiated, `layer` projects, measures and audits,
`surface` is the interface that the layers of each framework share.
"""
