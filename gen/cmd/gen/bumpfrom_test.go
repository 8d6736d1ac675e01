// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/generate"
	"github.com/goverbs/goverbs/gen/record"
	"github.com/goverbs/goverbs/gen/tables"
)

// sourceTree arranges headers as in a source tree, without man pages.
func sourceTree(t *testing.T, complete string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(dir, "libibverbs"),
		os.DirFS(filepath.Join(complete, "include/infiniband"))))
	require.NoError(t, os.CopyFS(filepath.Join(dir, "librdmacm"), os.DirFS(filepath.Join(complete, "include/rdma"))))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "CMakeLists.txt"), []byte("set(PACKAGE_VERSION \"99.0\")\n"),
		0o644))
	return dir
}

// TestBumpFromIncompleteSources reads a source tree and an include directory without man pages.
func TestBumpFromIncompleteSources(t *testing.T) {
	slow(t)
	gen := command(t)
	root, primary := copied(t)
	complete := unpacked(t, root, primary, lastMember, oneMore)
	source := sourceTree(t, complete)
	require.NoError(t, os.RemoveAll(filepath.Join(complete, "man")))
	pkgconfig := filepath.Join(complete, "lib/pkgconfig")
	require.NoError(t, os.MkdirAll(pkgconfig, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(pkgconfig, "libibverbs.pc"), []byte("Version: 1.20.99.0\n"), 0o644))
	before := contents(t, root)
	for name, from := range map[string]string{"source tree": source, "no man pages": filepath.Join(complete, "include")} {
		status, out, stderr := gen(root, "bump", from, "--dry-run")
		assert.Equal(t, 3, status, "%s: %s", name, stderr)
		assert.Contains(t, out, "→ 99.0: additive", name)
		assert.Contains(t, out, "those of "+primary+" were used instead", name)
		assert.Contains(t, out, "ibv_device_attr_ex.bump_test", name)
	}
	require.Equal(t, before, contents(t, root))
	for name, from := range map[string]string{"source tree": source, "no man pages": filepath.Join(complete, "include")} {
		status, _, stderr := gen(root, "bump", from)
		require.Equal(t, 3, status, "%s: %s", name, stderr)
		lock, err := tree{root: root}.lock()
		require.NoError(t, err)
		assert.Equal(t, "99.0", lock.Primary("rdma-core").Name, name)
		assert.Equal(t, []string{"none"}, lock.Primary("rdma-core").Suites, name)
		require.NoError(t, fetch.Verify(filepath.Join(root, "headers/cache"), lock.Primary("rdma-core")), name)
		m, err := generate.ReadModel(filepath.Join(root, "headers/models/99.0.json"))
		require.NoError(t, err)
		cache := filepath.Join(root, "headers/cache")
		again, err := record.FromCache(cache, cache, lock, lock.Primary("rdma-core"), nil)
		require.NoError(t, err)
		assert.Equal(t, m, again, "%s: recording again gives the same", name)
		assert.NotEmpty(t, m.Tables, name)
		assert.Equal(t, primary, m.ReleaseOf("ibv_post_send.3"), name)
		assert.NotNil(t, m.Library("libibverbs.so.1"), name)
		libraryOf := map[string]string{"source tree": primary, "no man pages": "99.0"}[name]
		assert.Equal(t, libraryOf, m.ReleaseOf("libibverbs.so.1"), name)
		text := generatedText(t, root)
		assert.Contains(t, text, "ibv_post_send.3, rdma-core "+primary, name)
		assert.NotContains(t, text, ".3, rdma-core 99.0", "%s: no page of that release was read", name)
		status, _, stderr = gen(root, "bump", primary)
		require.Equal(t, 4, status, "%s: %s", name, stderr)
		require.NoError(t, os.Remove(filepath.Join(root, "headers/models/99.0.json")))
		require.NoError(t, os.RemoveAll(filepath.Join(root, "headers/cache/99.0")))
		require.NoError(t, os.WriteFile(filepath.Join(root, "headers/headers.lock"),
			[]byte(before[filepath.Join(root, "headers/headers.lock")]), 0o644))
	}
	require.NoError(t, os.RemoveAll(filepath.Join(root, "headers/cache")))
	status, out, stderr := gen(root, "bump", source, "--dry-run")
	assert.Equal(t, 3, status, stderr)
	assert.Contains(t, out, "the tables and symbols of "+primary+" were used instead, and are not compared")
	status, _, stderr = gen(root, "bump", source)
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "cannot pin ")
	assert.Contains(t, stderr, "run make headers first")
	for path := range before {
		if strings.Contains(path, "/headers/cache/") {
			delete(before, path)
		}
	}
	assert.Equal(t, before, contents(t, root))
}

// TestBumpFromMarkdown reads a source tree with the page of the builders as Markdown, in which one cell differs.
func TestBumpFromMarkdown(t *testing.T) {
	slow(t)
	gen := command(t)
	root, primary := copied(t)
	source := sourceTree(t, unpacked(t, root, primary, lastMember, oneMore))
	m, err := generate.ReadModel(filepath.Join(root, "headers/models", primary+".json"))
	require.NoError(t, err)
	page := "# WORK\n\n| Operation | WR builder | QP Type Supported | setters |\n|---|---|---|---|\n"
	flags := "\n## Flags\n\n"
	for _, table := range m.Tables {
		for _, row := range table.Rows {
			switch {
			case table.Name == tables.WRFlagsName:
				flags += "**" + row.Name + "**\n:   A flag.\n\n"
			case table.Name == tables.WRPostName && row.Name == "RDMA_READ":
				page += "| RDMA_READ | " + row.Cells[0] + "() | UD, " + row.Cells[1] + " | " + row.Cells[2] + " |\n"
			case table.Name == tables.WRPostName:
				page += "| " + row.Name + " | " + row.Cells[0] + "() | " + row.Cells[1] + " | " + row.Cells[2] + " |\n"
			}
		}
	}
	man := filepath.Join(source, "libibverbs/man")
	require.NoError(t, os.MkdirAll(man, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(man, "ibv_wr_post.3.md"), []byte(page+flags+"# END\n"), 0o644))

	pinned := sourceTree(t, filepath.Join(root, "headers/cache", primary))
	require.NoError(t, os.CopyFS(filepath.Join(pinned, "libibverbs/man"), os.DirFS(man)))
	status, out, stderr := gen(root, "bump", pinned, "--dry-run")
	assert.Equal(t, 0, status, stderr)
	assert.NotContains(t, out, "read from Markdown", "the pinned page is available")

	status, _, stderr = gen(root, "bump", source)
	assert.Equal(t, 1, status, "the edited page contradicts the measurement, and no row explains it")
	assert.Contains(t, stderr, "gen/rules/measured.txt: wr_post: rxe 6.1 × IBV_QPT_UD × IBV_WR_RDMA_READ: "+
		"ibv_wr_post.3, rdma-core 99.0 says yes, but it fails")
	measured, err := filepath.Glob(filepath.Join(root, "headers/measured/*-wr_post.csv"))
	require.NoError(t, err)
	require.NotEmpty(t, measured)
	for _, path := range measured {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		works := strings.NewReplacer("UD,RDMA_READ,none,EOPNOTSUPP,-,-,-,-", "UD,RDMA_READ,none,0,0,none,RTS,ok",
			"UD,RDMA_READ,SIGNALED,EOPNOTSUPP,-,-,-,-", "UD,RDMA_READ,SIGNALED,0,0,SUCCESS,RTS,ok",
			"UD,RDMA_READ,SIGNALED|IP_CSUM,EOPNOTSUPP,-,-,-,-",
			"UD,RDMA_READ,SIGNALED|IP_CSUM,0,0,SUCCESS,RTS,ok").Replace(string(text))
		require.NotEqual(t, works, string(text))
		require.NoError(t, os.WriteFile(path, []byte(works), 0o644))
	}
	status, out, stderr = gen(root, "bump", source)
	assert.Equal(t, 4, status, stderr)
	assert.Contains(t, out, "note: the tables of ibv_wr_post.3 were read from Markdown")
	assert.Contains(t, out, "wr_post: RDMA_READ, qp_types  changed  RC, XRC_SEND → UD, RC, XRC_SEND")
	assert.Contains(t, out, "wr_post: IBV_QPT_UD × IBV_WR_RDMA_READ  changed  no → yes")
	assert.NotRegexp(t, `those of .* ibv_wr_post\.3 `, out, "the note about pages of another release")
	at := tree{root: root}
	lock, err := at.lock()
	require.NoError(t, err)
	require.NoError(t, fetch.Verify(at.cache(), lock.Primary("rdma-core")))
	again, err := record.FromCache(at.cache(), at.cache(), lock, lock.Primary("rdma-core"), nil)
	require.NoError(t, err)
	now, err := generate.ReadModel(filepath.Join(at.models(), "99.0.json"))
	require.NoError(t, err)
	assert.Equal(t, now, again, "recording again gives the same")

	text := generatedText(t, root)
	assert.Contains(t, text, "ibv_wr_post.3, rdma-core 99.0", "its own page was read, as Markdown")
	assert.NotContains(t, text, "ibv_post_send.3, rdma-core 99.0")

	status, out, stderr = gen(root, "bump", source, "--release", "100.0")
	assert.Equal(t, 0, status, "%s%s", out, stderr)
	text = generatedText(t, root)
	assert.Contains(t, text, "ibv_wr_post.3, rdma-core 100.0")
	assert.Contains(t, text, "ibv_post_send.3, rdma-core "+primary, "the page that replaced 99.0's")
	assert.NotContains(t, text, ".3, rdma-core 99.0")
	require.NoError(t, os.WriteFile(filepath.Join(man, "ibv_wr_post.3.md"),
		[]byte(strings.Replace(page, "|\n", "\n", 1)+flags), 0o644))
	status, _, stderr = gen(root, "bump", source, "--release", "101.0", "--dry-run")
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, source+": ibv_wr_post.3.md:3: row of 4 cells, want 4 with | on both sides")
}
