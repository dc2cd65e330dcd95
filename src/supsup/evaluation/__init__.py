"""How good a learner is: scenarios, grading, evaluate."""
