// SPDX-License-Identifier: BSD-2-Clause

package verbsdoc

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
)

const root = "../.."

var update = flag.Bool("update", false, "write docs/verbs.md")

// TestPage compares the pages, which make docs writes.
func TestPage(t *testing.T) {
	if *update {
		require.NoError(t, Write(root))
	}
	pages, err := Pages(root)
	require.NoError(t, err)
	for name, want := range pages {
		got, err := os.ReadFile(filepath.Join(root, "docs", name))
		require.NoError(t, err)
		assert.Equal(t, want, string(got), "docs/%s is stale: make docs writes it", name)
	}
}

// TestRPMAPageErrors tests unknown names, and functions without a counterpart.
func TestRPMAPageErrors(t *testing.T) {
	of := &model.Release{Name: "1.3.0", Headers: []model.Header{{Name: "librpma.h",
		Funcs: []model.Func{{Name: "rpma_send"}, {Name: "rpma_recv"}}}}}
	generated := map[string]string{"rpma_send": "Send", "rpma_recv": "Recv"}
	in := []Stated{{"rpma_send", "Conn.Send", "x.go:1"}}
	_, err := rpmaPage(of, in, generated)
	assert.EqualError(t, err, "rpma or generated/librpma lacks rpma_recv")
	_, err = rpmaPage(of, append(in, Stated{"rpma_typo", "Conn.Typo", "x.go:2"}), generated)
	assert.EqualError(t, err, "rpma/x.go:2: Conn.Typo names rpma_typo, which librpma.h does not declare")
	text, err := rpmaPage(of, append(in, Stated{"rpma_recv", "ConnConfig.Recv", "x.go:3"}), generated)
	require.NoError(t, err)
	assert.Contains(t, text, "\n| rpma_recv | `ConnConfig.Recv` | `librpma.Recv` |\n| rpma_send |")
}

func release(names ...string) *model.Release {
	h := model.Header{Name: header}
	for _, name := range names {
		h.Funcs = append(h.Funcs, model.Func{Name: name, Man: name + ".3"})
	}
	return &model.Release{Name: "1.0", Headers: []model.Header{h}}
}

func TestPageErrors(t *testing.T) {
	generated := map[string]string{"ibv_x": "X", "ibv_y": "Y"}
	known := map[string]bool{"ibv_x": true, "ibv_y": true, "mlx5dv_z": true}
	in := []Stated{{"ibv_x", "QP.X", "x.go:1"}, {"ibv_x", "QP.XToo", "x.go:2"}, {"mlx5dv_z", "QP.Z", "x.go:3"}}
	text, err := page(release("ibv_y", "ibv_x"), in, generated, known)
	require.NoError(t, err)
	assert.Contains(t, text, "\n| ibv_x | `QP.X`, `QP.XToo` | ibv_x(3) |\n")
	assert.Contains(t, text, "\n| ibv_y | `libibverbs.Y` | ibv_y(3) |\n")
	assert.Contains(t, text, "\n| mlx5dv_z | `QP.Z` |\n")

	_, err = page(release("ibv_x", "ibv_z"), in, generated, known)
	assert.EqualError(t, err, "neither rdma nor generated/libibverbs has ibv_z")
	_, err = page(release("ibv_x"), append(in, Stated{"ibv_typo", "CQ.Typo", "cq.go:7"}), generated, known)
	assert.EqualError(t, err, "rdma/cq.go:7: CQ.Typo names ibv_typo, which no header declares")
}

func TestLinesOfDocComments(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
	}
	write("a.go", `package a

// T is.
//
// C: ibv_t, ibv_u
type T struct{}

// M does.
//
// C: ibv_m
func (t *T) M() {}

// C: ibv_hidden
func hidden() {}

type u struct{}

// C: ibv_hidden
func (u) N() {}

// F does.
//
// C: ibv_f
func F() {}
`)
	write("a_test.go", "package a\n\n// G does.\n//\n// C: ibv_g\nfunc G() {}\n")
	all, err := ReadRDMA(dir)
	require.NoError(t, err)
	assert.Equal(t, []Stated{{"ibv_t", "T", "a.go:3"}, {"ibv_u", "T", "a.go:3"}, {"ibv_m", "T.M", "a.go:8"},
		{"ibv_f", "F", "a.go:21"}}, all)
	write("b.go", "package a\n\n// H does.\n//\n// C: ibv_h and ibv_i\nfunc H() {}\n")
	_, err = ReadRDMA(dir)
	assert.EqualError(t, err, `b.go:3: H: "ibv_h and ibv_i" is not the name of a C function`)
	_, err = ReadRDMA(t.TempDir())
	assert.ErrorContains(t, err, "no Go in")
}
