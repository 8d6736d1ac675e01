// SPDX-License-Identifier: BSD-2-Clause

package printing

import (
	"go/types"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/tools/go/packages"
)

// TestMarshalersHaveUnmarshalers checks that types with a marshaling method have the unmarshaling one; otherwise
// parsing would silently leave them empty. It covers all public packages and the targets of their aliases.
func TestMarshalersHaveUnmarshalers(t *testing.T) {
	const mode = packages.NeedName | packages.NeedTypes | packages.NeedImports | packages.NeedDeps
	all, err := packages.Load(&packages.Config{Dir: "../..", Mode: mode}, "./generated/...", "./rdma/...", "./rpma",
		"./runtime/...")
	require.NoError(t, err)
	n := 0
	for _, p := range all {
		require.Empty(t, p.Errors)
		for _, name := range p.Types.Scope().Names() {
			is, ok := p.Types.Scope().Lookup(name).(*types.TypeName)
			if !ok || !is.Exported() {
				continue
			}
			methods := types.NewMethodSet(types.NewPointer(is.Type()))
			for _, in := range []string{"JSON", "Text"} {
				marshal, read := "Marshal"+in, "Unmarshal"+in
				if methods.Lookup(p.Types, marshal) != nil {
					n++
					assert.NotNil(t, methods.Lookup(p.Types, read), "%s.%s has no %s", p.PkgPath, name, read)
				}
			}
		}
	}
	assert.Greater(t, n, 200)
}
