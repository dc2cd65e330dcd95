"""What people look at: tables for the terminal, plots, the HTML page and the Markdown pages."""

from supsup_paper.records import write_text as write_text
from supsup_paper.report.plots import accuracy_plot as accuracy_plot
from supsup_paper.report.plots import recovery_plot as recovery_plot
from supsup_paper.report.plots import search_plot as search_plot
from supsup_paper.report.plots import time_plot as time_plot
from supsup_paper.report.terminal import closing_table as closing_table
from supsup_paper.report.terminal import recovery_table as recovery_table
