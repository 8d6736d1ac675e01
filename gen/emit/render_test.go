// SPDX-License-Identifier: BSD-2-Clause

package emit

import (
	"strings"
	"testing"

	"github.com/dave/jennifer/jen"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
)

// TestRenderErrors checks that an error names the invalid declaration and does not quote the whole file.
func TestRenderErrors(t *testing.T) {
	p := &rules.Plan{
		Package: rules.Package{Name: "ibv",
			Headers: []string{"a.h"}}, Release: "1.0", Import: "x/ibv", Targets: []string{"amd64"},
		Enums: []rules.Enum{
			{Doc: rules.Doc{C: "enum good", Header: "a.h"}, Tag: "good", Go: "Good", Size: 4,
				Names: []rules.Const{{C: "GOOD", Go: "GOOD", Value: model.IntOf(1)}}},
			{Doc: rules.Doc{C: "enum bad", Header: "a.h"}, Tag: "bad", Go: "Bad }{", Size: 4,
				Names: []rules.Const{{C: "BAD", Go: "BAD", Value: model.IntOf(1)}}},
		},
	}
	_, err := Package(p)
	require.Error(t, err)
	assert.Contains(t, err.Error(), `enum.go: invalid Go printed for "type Bad }{ uint32" (C: enum bad (a.h)): `)
	assert.NotContains(t, err.Error(), "Good")
	assert.NotContains(t, err.Error(), "\n")

	f := jen.NewFile("x")
	f.Const().Defs(jen.Id("A").Op("=").Op("1"), jen.Id("B").Op("=").Op("1x!"), jen.Id("C").Op("=").Op("3"))
	_, err = render("const.go", f)
	assert.ErrorContains(t, err, `const.go: invalid Go printed for "const (", at "B = 1x!"`)

	f = jen.NewFile("x")
	f.Type().Id("T").Struct(jen.Id(strings.Repeat("long ", 1000)).Int())
	_, err = render("struct.go", f)
	require.Error(t, err)
	assert.Less(t, len(err.Error()), 400)
}
