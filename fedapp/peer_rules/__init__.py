"""What a site makes of its own model and its neighbours': one file a rule, without a server.

Pure: adapters and numbers in, an adapter and a verdict on every neighbour out. `base` has the form
that all rules share; a method names its rule in `fedapp.registry`.
"""
