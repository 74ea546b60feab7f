"""`headway tiny-model`: makes a model of about a megabyte that calls one environment's tools.

It is taught from episodes of the environment's oracle.
"""
