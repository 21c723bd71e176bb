"""Slow and obvious versions of what the package computes, and the cases they are tried on.

They share no code with the package. Tests import them as ``from oracles import naive``.
"""
