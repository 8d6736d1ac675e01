// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"context"

	"github.com/goverbs/goverbs/gen/model"
)

// CWitness makes a C compiler verify a model: it compiles the real headers in includeDir (or in the compiler's own
// directories if it is empty) with an assertion for each fact of the model about the target. The report lists the
// assertions that failed. An error means that nothing was verified.
func CWitness(ctx context.Context, cc Compiler, includeDir string, r *model.Release, target string) (*Report, error) {
	w, err := NewWitness(r, target)
	if err != nil {
		return nil, err
	}
	return w.Check(ctx, cc, includeDir)
}
