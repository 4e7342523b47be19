"""Beside this file stand modules that the tests of its folders share."""
