"""Keys, certificates and join kits: how a consortium comes to trust each other.

Private keys never travel. A hospital makes its own (`keys`) and sends a signing request
(`request`); the coordinator signs it with an authority of the consortium's own (`authority`), and
hands out a kit (`kits`).
"""
