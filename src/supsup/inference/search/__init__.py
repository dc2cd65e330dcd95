"""Inner products of queries with masks held as bits, and the largest of them: the search behind task inference."""

from supsup.inference.search.exact import Outer as Outer
from supsup.inference.search.exact import Query as Query
from supsup.inference.search.exact import dense as dense
from supsup.inference.search.exact import inner as inner
from supsup.inference.search.exact import on_gpu as on_gpu
from supsup.inference.search.exact import rows_at_once as rows_at_once
from supsup.inference.search.short import bytes_read as bytes_read
from supsup.inference.search.short import nearest as nearest
