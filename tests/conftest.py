"""Settings for all tests."""

from hypothesis import settings

# compiling takes its time at the first example, and the same examples come in every run
settings.register_profile("samplesoft", deadline=None, derandomize=True)
settings.load_profile("samplesoft")
