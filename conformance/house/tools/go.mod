// Tools of tests and make targets. They are a module of their own, so that users of goverbs do not get their dependencies.
module github.com/goverbs/goverbs/conformance/house/tools

go 1.26.3

tool (
	golang.org/x/exp/cmd/apidiff
	gvisor.dev/gvisor/tools/checklocks/cmd/checklocks
)

require (
	golang.org/x/exp v0.0.0-20261113113407-e3970619a1a4 // indirect
	golang.org/x/mod v0.42.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/tools v0.52.1-0.20261106145633-d407941a339a // indirect
	gvisor.dev/gvisor v0.0.0-20260905035102-160fafc42237 // indirect
)
