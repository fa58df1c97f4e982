"""Compile a job file's engine keys into command lines of upstream's programs, for one release.

``option_table`` maps each key to all option names that upstream has used for it;
the release's list of options decides which one applies. ``compile`` makes both
the command lines and the diagnostics in one pass, so every job file that is not
refused can be rendered.
"""
