"""Common English words, of which texts of a given length are made.

Tokenizers have a token of its own for most of them; which ones is measured.
"""

from __future__ import annotations

_WORDS = """
    the of and to in is that for it as was with be by on not he his but at are this have from or had an they
    which one you were her all she there would their we him been has when who will more no if out so said
    what up its about into than them can only other new some could time these two may then do first any my
    now such like our over man me even most made after also did many before must through back years where
    much your way well down should because each just those people how too little state good very make world
    still own see men work long get here between both life being under never day same another know while
    last might us great old year off come since against go came right used take three house use again place
    found end part water side until always away something fact less though night head yet hand think home
    give room light face put small left word line river train north south east west early late morning open
    book table letter road field stone tree bird green white black red blue high low deep cold warm summer
    winter spring answer question number city street music paper school friend mother father child king ship
    sea land sun moon star wind rain fire a i e o s t n r d l c m p g b f h k v w y u x j z q
"""

COMMON = tuple(_WORDS.split())
"""In a fixed order, which is part of what makes a workload the same again. Single letters come last."""
