"""The site as a service: what owns a hospital's records, base model and state, behind a socket.

The two halves: `server` and what it is made of run in the hospital's own image; `remote`, `calls`
and `payloads` in the ClientApp that the coordinator sends, which has no torch and no data.
"""
