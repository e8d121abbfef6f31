# What is done often. Everything is a command of the project's own tool; this file only gives it a short name.

.PHONY: test e2e tidy

test:
	cargo xtask test

e2e:
	cargo xtask e2e

tidy:
	cargo xtask tidy
