"""Robust rules that LIGHTYEAR is compared with, one a file, on flat vectors (numpy, pure).

A site's own model is ``own_p`` (P,), those of its neighbours ``peers_kp`` (K, P); a rule of a
coordinator takes ``vectors_kp``, every site's. Each is its paper's rule, not the code of a later
comparison. Sums are in fp64, the result has the format of its input. Ties go to the first row, so
that rows sorted by site name give one result. What is not finite must be refused before.
"""
