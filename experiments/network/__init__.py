"""`hippo network`: how links move.

fit      Fit processes of links to measured paths, and check them on what they were not fitted to
predict  Errors of predictors of bandwidth, on paths they were not fitted to
"""
