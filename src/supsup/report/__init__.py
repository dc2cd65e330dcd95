"""What people look at: tables for the terminal and plots."""

from supsup.report.plots import accuracy_plot as accuracy_plot
from supsup.report.plots import time_plot as time_plot
from supsup.report.tables import closing_table as closing_table
