"""Novelty: how well log p(x) tells anomalies from held-out normal rows, beside nearest neighbours."""

#: Twelve sets of ADBench in a random order (seed 0): defaults are chosen on the first six, the others are
#: measured once.
DEVELOPMENT = ("24_mnist", "43_WDBC", "20_letter", "2_annthyroid", "6_cardio", "40_vowels")
TEST = ("18_Ionosphere", "44_Wilt", "12_fault", "38_thyroid", "23_mammography", "29_Pima")
