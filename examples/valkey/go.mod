module github.com/goverbs/goverbs/examples/valkey

go 1.26.0

require (
	github.com/goverbs/goverbs v0.0.0
	github.com/stretchr/testify v1.12.1
	github.com/valkey-io/valkey-go v1.0.79
	go.uber.org/goleak v1.3.0
	golang.org/x/net v0.62.0
)

require (
	github.com/ebitengine/purego v0.11.3 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/goverbs/goverbs => ../..
