"""What people look at: tables for the terminal, plots, the HTML page and the Markdown pages."""

from supsup.report.plots import accuracy_plot as accuracy_plot
from supsup.report.plots import recovery_plot as recovery_plot
from supsup.report.plots import search_plot as search_plot
from supsup.report.plots import time_plot as time_plot
from supsup.report.tables import closing_table as closing_table
from supsup.report.tables import recovery_table as recovery_table
from supsup.report.writing import write as write
