// SPDX-License-Identifier: BSD-2-Clause

package abicheck

import (
	"context"

	"github.com/goverbs/goverbs/gen/model"
)

// CWitness lets a C compiler testify about a model: it compiles the real headers in includeDir (or in the compiler's
// own directories where that is empty) with an assertion for everything that the model says about the target. What the
// compiler disagrees with is in the report; an error means that nothing was proved either way.
func CWitness(ctx context.Context, cc Compiler, includeDir string, r *model.Release, target string) (*Report, error) {
	w, err := NewWitness(r, target)
	if err != nil {
		return nil, err
	}
	return w.Check(ctx, cc, includeDir)
}
