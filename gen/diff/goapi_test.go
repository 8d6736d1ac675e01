// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
)

func TestGoIdentifiers(t *testing.T) {
	read := func(src string) API {
		api, err := ReadAPI(map[string][]byte{"p/p.go": []byte("package p\n" + src)})
		require.NoError(t, err)
		return api
	}
	j, err := ParseJudgements("j", "reserved | reserved* | | no meaning")
	require.NoError(t, err)
	for _, c := range []struct{ old, new, name, change, verdict string }{
		{"", "const A = 1", "A", "added", "additive"},
		{"const A = 1", "", "A", "removed", "breaking"},
		{"const A = 1", "const A T = 1", "A", "retyped", "breaking"},
		{"const A = 1", "const A = 2", "A", "revalued", "breaking"},
		{"const A T = 1", "const A T = 2", "A", "revalued", "breaking"},
		{"const A T = 1", "const A U = 2", "A", "retyped", "breaking"},
		{"const A = b\nconst b = 1", "const A = b\nconst b = 2", "A", "revalued", "breaking"},
		{"const A = b\nconst b = 1", "const A = 1", "", "", "none"},
		{"var A = 1", "var A = 2", "", "", "none"},
		{"const a = 1", "", "", "", "none"},
		{"type T struct { X int }", "type T struct { X, Y int }", "T.Y", "added", "additive"},
		{"type T struct { X, Y int }", "type T struct { X int }", "T.Y", "removed", "breaking"},
		{"type T struct { X int }", "type T struct { X uint }", "T.X", "retyped", "breaking"},
		{"type T struct { X int }", "type T struct { b [4]byte }\nfunc (p *T) X() *int { return nil }", "T.X",
			"changed", "breaking"},
		{"type T struct { Reserved [4]byte }", "type T struct { Reserved [2]byte }", "T.Reserved", "retyped",
			"additive"},
		{"type T struct { Reserved [4]byte }", "type T struct { }", "T.Reserved", "removed", "additive"},
		{"type T struct { X int }", "", "T", "removed", "breaking"},
		{"", "type T struct { X int }\nfunc (T) M() {}", "T", "added", "additive"},
		{"type T int", "type T uint", "T", "retyped", "breaking"},
		{"type T = int", "type T int", "T", "retyped", "breaking"},
		{"func F(a int) {}", "func F(a uint) {}", "F", "retyped", "breaking"},
		{"type T int", "type T int\nfunc (t T) M() {}", "T.M()", "added", "additive"},
		{"type T int\nfunc (t *T) M() int { return 0 }", "type T int\nfunc (t *T) M() string { return `` }", "T.M()",
			"retyped", "breaking"},
	} {
		t.Run(c.old+" to "+c.new, func(t *testing.T) {
			empty := &model.Release{Name: "1", Targets: []string{"amd64"}}
			r := Compare(Generation{Release: empty, Go: read(c.old)}, Generation{Release: empty, Go: read(c.new)}, j)
			assert.Equal(t, c.verdict, r.Verdict.String())
			if c.name != "" {
				i := slices.IndexFunc(r.Entries, func(e Entry) bool { return e.Name == c.name })
				require.GreaterOrEqual(t, i, 0, "%+v", r.Entries)
				assert.Equal(t, Change(c.change), r.Entries[i].Change)
				assert.Equal(t, "package p", r.Entries[i].Where)
			} else {
				assert.Empty(t, r.Entries)
			}
		})
	}
	t.Run("values by target", func(t *testing.T) {
		of := func(values ...string) API {
			files := map[string][]byte{}
			for i, v := range values {
				files[fmt.Sprintf("p/%d.go", i)] = []byte("package p\nconst A T = " + v)
			}
			api, err := ReadAPI(files)
			require.NoError(t, err)
			return api
		}
		assert.Equal(t, "const T = 1 | 2", of("1", "2")["p"]["A"])
		empty := &model.Release{Name: "1", Targets: []string{"amd64"}}
		r := Compare(Generation{Release: empty, Go: of("1", "2")}, Generation{Release: empty, Go: of("1", "3")}, j)
		assert.Equal(t, []Entry{{"package p", GoName, "A", Revalued, "const T = 1 | 2", "const T = 1 | 3", Breaking,
			"existing programs use the old value"}}, r.Entries)
	})
	t.Run("texts by target", func(t *testing.T) {
		api, err := ReadAPI(map[string][]byte{"p/a.go": []byte("package p\ntype T struct{ X [5]int }"),
			"p/b.go": []byte("package p\ntype T struct{ X [6]int }")})
		require.NoError(t, err)
		assert.Equal(t, "field [5]int | field [6]int", api["p"]["T.X"])
	})
	_, err = ReadAPI(map[string][]byte{"p/p.go": []byte("no Go")})
	assert.ErrorContains(t, err, "generated source is invalid")
}
