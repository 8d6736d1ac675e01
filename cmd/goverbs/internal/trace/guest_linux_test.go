// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGuest checks the causes found for documented errors on Soft-RoCE.
func TestGuest(t *testing.T) {
	if guest() == "" {
		t.Skip("runs on a real kernel with Soft-RoCE: make vm, or go run ./conformance/vm/cmd/vmtest -- " +
			"./cmd/goverbs/internal/trace")
	}
	rows := [][]string{{"fault", "shown", "cause", "named"}}
	right := 0
	for _, f := range documented {
		found := Explain(traced(t, f.name))
		shown, named := "nothing", "nothing"
		if len(found) > 0 {
			shown, named = found[0].What, found[0].Cause
		}
		rows = append(rows, []string{f.name, shown, f.cause, named})
		if named == f.cause {
			right++
		} else {
			t.Logf("%s: want cause %s, got %s of %s", f.name, f.cause, named, shown)
		}
	}
	t.Logf("causes found: %d of %d, %d %%", right, len(documented), right*100/len(documented))
	assert.GreaterOrEqual(t, right*100, len(documented)*90)
	if out := os.Getenv("GOVERBS_OUT"); out != "" {
		file, err := os.Create(filepath.Join(out, "explained-"+guest()+".csv"))
		require.NoError(t, err)
		require.NoError(t, csv.NewWriter(file).WriteAll(rows))
		require.NoError(t, file.Close())
	}
}
