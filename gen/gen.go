// SPDX-License-Identifier: BSD-2-Clause

// Package gen is the generator: headers are parsed into models, rules turn models into plans, and plans are printed
// as the packages below generated/. See ARCHITECTURE.md. After a header bump:
//
//	go generate ./gen/...
package gen

//go:generate go run ./cmd/gen generate
