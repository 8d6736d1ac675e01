// SPDX-License-Identifier: BSD-2-Clause

//go:build tools

// Package tools pins what the generator and the tests are built with, as the design fixes it.
package tools

import (
	_ "github.com/dave/jennifer/jen"
	_ "github.com/stretchr/testify"
	_ "modernc.org/cc/v4"
)
