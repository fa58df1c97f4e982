"""Compile a job file's engine keys into command lines of upstream's programs, for one release.

``compile`` makes both the command lines and the diagnostics in one pass, so every job file that is not
refused can be rendered.
"""
