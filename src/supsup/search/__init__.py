"""Inner products of queries with masks held as bits, and the largest of them: the search behind task inference.

This room alone decides how they are taken.
"""

from supsup.search.exact import inner as inner
from supsup.search.exact import on_gpu as on_gpu
from supsup.search.exact import rows_at_once as rows_at_once
from supsup.search.factors import Outer as Outer
from supsup.search.factors import Query as Query
from supsup.search.factors import dense as dense
from supsup.search.short import bytes_read as bytes_read
from supsup.search.short import nearest as nearest
