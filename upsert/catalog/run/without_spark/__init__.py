"""Statements that the store and Arrow execute as Spark does by default, at once.

Whatever may have other results there, or would take long in one process, is left to Spark. See
docs/decisions/0121.
"""
