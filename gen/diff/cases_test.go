// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/parse"
	"github.com/goverbs/goverbs/gen/rules"
)

var update = flag.Bool("update", false, "rewrite the expected reports in testdata")

// TestCases compares two small headers for each rule. A case holds old.h, new.h, optionally the exports of a library
// (old.symbols, new.symbols), judgements.txt and a table in the format of gen/rules/tables, and the report. The first
// word of its file name is the verdict, which -update does not change. Rows without effect are errors.
func TestCases(t *testing.T) {
	cases, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	require.Greater(t, len(cases), 50)
	for _, path := range cases {
		name := strings.TrimSuffix(filepath.Base(path), ".txtar")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(path)
			require.NoError(t, err)
			text := map[string]string{}
			for _, f := range archive.Files {
				text[f.Name] = string(f.Data)
			}
			j, err := ParseJudgements("judgements.txt", text["judgements.txt"])
			require.NoError(t, err)
			old, new := fromC(t, "1.0", text["old.h"]), fromC(t, "2.0", text["new.h"])
			old.Libraries, new.Libraries = exports(t, text["old.symbols"]), exports(t, text["new.symbols"])
			r := Compare(planned(t, old, text["acts.txt"]), planned(t, new, text["acts.txt"]), j)
			want, _, _ := strings.Cut(name, "-")
			assert.Equal(t, want, r.Verdict.String(), "the verdict in the name of the case:\n%s", r.Text())
			assert.Empty(t, j.Unused())
			got := r.Text()
			if *update {
				if n := len(archive.Files) - 1; archive.Files[n].Name == "report.txt" {
					archive.Files = archive.Files[:n]
				}
				archive.Files = append(archive.Files, txtar.File{Name: "report.txt", Data: []byte(got)})
				require.NoError(t, os.WriteFile(path, txtar.Format(archive), 0o644))
				return
			}
			assert.Equal(t, text["report.txt"], got)
		})
	}
}

// planned returns a release with a table of the given rows. Rows about declarations that the release lacks are dropped.
func planned(t *testing.T, r *model.Release, table string) Generation {
	t.Helper()
	g := Generation{Release: r, Go: API{}}
	if table != "" {
		file, err := rules.ParseGrid("acts.txt", table)
		require.NoError(t, err)
		g.Grids, _ = rules.ResolveGrids(r, file.Package, []*rules.GridFile{file})
	}
	return g
}

// fromC models one header for two targets; the mutex of the second target is larger.
func fromC(t *testing.T, release, header string) *model.Release {
	t.Helper()
	const name = "infiniband/t.h"
	r, err := parse.Read(parse.Source{
		Release: release, Include: fstest.MapFS{name: {Data: []byte(header)}}, Name: release, Headers: []string{name},
		Targets: []string{"amd64", "arm64"},
	})
	require.NoError(t, err)
	r.Tables = []model.Table{{Name: "t", Page: "t.3"}}
	return r
}

// exports parses descriptions of libraries. Lines are "library NAME", "version NAME", and symbols in the format of nm,
// "NAME@@VERSION", with "object SIZE" appended for an object.
func exports(t *testing.T, text string) (all []model.Library) {
	t.Helper()
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if words[0] == "library" {
			all = append(all, model.Library{Name: words[1]})
			continue
		}
		lib := &all[len(all)-1]
		if words[0] == "version" {
			lib.Versions = append(lib.Versions, model.Version{Name: words[1]})
			continue
		}
		name, version, _ := strings.Cut(words[0], "@")
		s := model.Symbol{Name: name, Version: strings.TrimPrefix(version, "@")}
		s.Old = s.Version != "" && s.Version == version
		if len(words) > 1 {
			size, err := strconv.ParseInt(words[2], 10, 64)
			require.NoError(t, err)
			s.Object, s.Size = true, size
		}
		lib.Symbols = append(lib.Symbols, s)
	}
	require.NoError(t, (&model.Release{Project: "p", Name: "1", Targets: []string{"amd64"}, Libraries: all}).Check())
	return all
}
