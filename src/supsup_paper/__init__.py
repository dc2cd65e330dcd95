"""The paper's tables and figures as data: what each shows, with which settings, and what was published."""

from supsup_paper.catalogue.rows import Entry as Entry
from supsup_paper.catalogue.rows import Row as Row
