"""How certain a number is: intervals, paired differences, and when there are too few rows to tell.

clusters.py      the variance of a mean whose values come in clusters, and its degrees of freedom
estimates.py     a sample, and its mean with an interval
differences.py   two candidates on the same tries: difference, interval, p value, Holm's correction

The method is that of "Adding Error Bars to Evals" (arXiv 2411.00640), made exact for few rows.
"""
