// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var cached = []string{
	"include/infiniband/ib_user_ioctl_verbs.h",
	"include/infiniband/tm_types.h",
	"include/infiniband/verbs.h",
	"include/infiniband/verbs_api.h",
	"man/ibv_post_send.3",
	"man/ibv_rate_to_mbps.3",
	"man/ibv_wr_post.3",
	"man/ibv_wr_send.3",
	"man/mbps_to_ibv_rate.3",
	"man/mult_to_ibv_rate.3",
}

func TestFromDirInclude(t *testing.T) {
	rel := pinned(t)
	root := unpacked(t, packageFiles)
	for name, dir := range map[string]string{"package": root, "prefix": filepath.Join(root, "usr"),
		"include": filepath.Join(root, "usr/include")} {
		t.Run(name, func(t *testing.T) {
			cache := filepath.Join(t.TempDir(), "deep", "cache")
			missing, err := FromDir(dir, rel, cache, t.Logf)
			require.NoError(t, err)
			assert.Empty(t, missing)
			assert.Equal(t, cached, below(t, filepath.Join(cache, "9.0")))
			text, err := os.ReadFile(filepath.Join(cache, "9.0/man/ibv_wr_send.3"))
			require.NoError(t, err)
			assert.Equal(t, ".TH wr_post\n", string(text), "read through the link, uncompressed")
			assert.NoError(t, Verify(cache, rel))
		})
	}
}

// TestFromDirOtherLinks checks the page formats of other distributions: uncompressed, as copies, and as pages that only
// contain a .so request.
func TestFromDirOtherLinks(t *testing.T) {
	rel := pinned(t)
	for name, text := range map[string]string{"stub": ".so man3/ibv_wr_post.3\n",
		"copy": packageFiles["share/man/man3/ibv_wr_post.3"]} {
		t.Run(name, func(t *testing.T) {
			root := unpacked(t, but(map[string]string{"share/man/man3/ibv_wr_send.3": ""}))
			write(t, filepath.Join(root, "usr/share/man/man3/ibv_wr_send.3"), []byte(text))
			missing, err := FromDir(root, rel, t.TempDir(), nil)
			assert.NoError(t, err)
			assert.Empty(t, missing)
		})
	}
}

// sourceTree creates a source tree with packageFiles. One page is in Markdown, and links are missing, since the build
// creates them.
func sourceTree(t *testing.T) string {
	dir := t.TempDir()
	for file, name := range map[string]string{
		"libibverbs/verbs.h":                        "include/infiniband/verbs.h",
		"libibverbs/verbs_api.h":                    "include/infiniband/verbs_api.h",
		"libibverbs/tm_types.h":                     "include/infiniband/tm_types.h",
		"kernel-headers/rdma/ib_user_ioctl_verbs.h": "include/infiniband/ib_user_ioctl_verbs.h",
		"libibverbs/man/ibv_post_send.3":            "share/man/man3/ibv_post_send.3",
		"libibverbs/man/ibv_rate_to_mbps.3.md":      "share/man/man3/ibv_rate_to_mbps.3",
		"providers/mlx5/man/ibv_wr_post.3":          "share/man/man3/ibv_wr_post.3",
	} {
		write(t, filepath.Join(dir, file), []byte(packageFiles[name]))
	}
	return dir
}

func TestFromDirSourceTree(t *testing.T) {
	rel, cache := pinned(t), t.TempDir()
	missing, err := FromDir(sourceTree(t), rel, cache, nil)
	require.NoError(t, err)
	want := []string{"ibv_rate_to_mbps.3", "mbps_to_ibv_rate.3", "mult_to_ibv_rate.3"}
	assert.Equal(t, want, missing)

	var lacks *IncompleteError
	require.ErrorAs(t, Verify(cache, rel), &lacks)
	assert.Equal(t, want, lacks.Pages)
	assert.EqualError(t, lacks, "rdma-core 9.0: the cache has all headers but lacks 3 man pages: "+
		"ibv_rate_to_mbps.3, mbps_to_ibv_rate.3, mult_to_ibv_rate.3; fetch the release from the archive, "+
		"or give the files with FROM=<include directory or source tree> that has them")
}

func TestFromDirMismatch(t *testing.T) {
	rel := pinned(t)
	root := unpacked(t, but(map[string]string{
		"include/infiniband/verbs.h":    "int changed;\n",
		"include/infiniband/tm_types.h": "",
		"share/man/man3/ibv_wr_post.3":  ".TH other\n",
		"share/man/man3/ibv_wr_send.3":  "-> ibv_post_send.3",

		"share/man/man3/mbps_to_ibv_rate.3": ".TH a page of its own\n",
	}))
	dir := filepath.Join(root, "usr/include")
	cache := t.TempDir()
	_, err := FromDir(dir, rel, cache, nil)
	var m *MismatchError
	require.ErrorAs(t, err, &m)
	assert.Equal(t, []Diff{
		{"infiniband/verbs.h", sum([]byte("int verbs;\n")), sum([]byte("int changed;\n"))},
		{"infiniband/tm_types.h", sum([]byte("int tm;\n")), "<missing>"},
		{"ibv_wr_post.3", sum([]byte(".TH wr_post\n")), sum([]byte(".TH other\n"))},
		{"ibv_wr_send.3", "<link to ibv_wr_post.3>", "<link to ibv_post_send.3>"},
		{"mbps_to_ibv_rate.3", "<link to ibv_rate_to_mbps.3>", sum([]byte(".TH a page of its own\n"))},
	}, m.Diffs)
	assert.Contains(t, err.Error(), "rdma-core 9.0: "+dir+" differs from headers.lock:\n"+
		"\tinfiniband/verbs.h\n"+
		"\t\twanted 17ba5a726870800560deb6130359461e8df4ad522d88234682ced2e2b99b119a\n"+
		"\t\tfound  ")
	assert.Contains(t, err.Error(), "FROM is another release")
	assert.Empty(t, below(t, cache), "the cache is unchanged")
}

func TestFromDirDamaged(t *testing.T) {
	rel := pinned(t)
	complete := gz(t, packageFiles["share/man/man3/ibv_post_send.3"])
	for _, c := range []struct {
		name, want string
		data       []byte
	}{
		{"truncated", "ibv_post_send.3.gz: damaged gzip file: unexpected EOF", complete[:len(complete)-6]},
		{"wrong checksum", "ibv_post_send.3.gz: damaged gzip file: gzip: invalid checksum",
			append(append([]byte{}, complete[:len(complete)-8]...), make([]byte, 8)...)},
		{"not gzip", "ibv_post_send.3.gz: not a gzip file: gzip: invalid header", []byte(".TH plain text\n")},
		{"too large", "ibv_post_send.3.gz: larger than the limit of 1 MiB", gz(t, string(make([]byte, 1<<20+1)))},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, cache := unpacked(t, packageFiles), t.TempDir()
			write(t, filepath.Join(root, "usr/share/man/man3/ibv_post_send.3.gz"), c.data)
			_, err := FromDir(root, rel, cache, nil)
			assert.ErrorContains(t, err, c.want)
			assert.Empty(t, below(t, cache))
		})
	}
}

func TestFromDirNeither(t *testing.T) {
	dir := t.TempDir()
	_, err := FromDir(dir, pinned(t), t.TempDir(), nil)
	assert.EqualError(t, err, "rdma-core 9.0: "+dir+" is neither an include directory (it has no infiniband/verbs.h) "+
		"nor an rdma-core source tree (it has no libibverbs/verbs.h)")
}

func TestPin(t *testing.T) {
	rel := pinned(t)
	want := &Package{
		Name: "libibverbs-dev", Version: "9.0-1",
		Headers: []File{
			{Name: "infiniband/verbs.h", Sum: "17ba5a726870800560deb6130359461e8df4ad522d88234682ced2e2b99b119a"},
			{Name: "infiniband/verbs_api.h", Sum: sum([]byte("int api;\n"))},
			{Name: "infiniband/ib_user_ioctl_verbs.h", Sum: sum([]byte("int ioctl;\n"))},
			{Name: "infiniband/tm_types.h", Sum: sum([]byte("int tm;\n"))},
		},
		Pages: []File{
			{Name: "ibv_post_send.3", Sum: sum([]byte(".TH post_send\n"))},
			{Name: "ibv_rate_to_mbps.3", Sum: sum([]byte(".TH rate\n"))},
			{Name: "ibv_wr_post.3", Sum: sum([]byte(".TH wr_post\n"))},
		},
		Links: []Link{
			{"ibv_wr_send.3", "ibv_wr_post.3"},
			{"mbps_to_ibv_rate.3", "ibv_rate_to_mbps.3"},
			{"mult_to_ibv_rate.3", "ibv_rate_to_mbps.3"},
		},
	}
	assert.Equal(t, want, rel.Packages[0])

	// pinning from a cache gives the same result
	cache := t.TempDir()
	_, err := FromDir(unpacked(t, packageFiles), rel, cache, nil)
	require.NoError(t, err)
	again := &Release{Project: rdmaCore, Name: "9.0", Packages: []*Package{{Name: "libibverbs-dev", Version: "9.0-1"}}}
	require.NoError(t, Pin(filepath.Join(cache, "9.0"), again))
	assert.Equal(t, want, again.Packages[0])
}

func TestPinErrors(t *testing.T) {
	pin := func(dir, pkg string) error {
		return Pin(dir, &Release{Project: rdmaCore, Name: "9.0", Packages: []*Package{{Name: pkg, Version: "1"}}})
	}
	err := pin(unpacked(t, but(map[string]string{"include/infiniband/tm_types.h": ""})), "libibverbs-dev")
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, "infiniband/tm_types.h")
	assert.ErrorContains(t, pin(sourceTree(t), "libibverbs-dev"), "is a source tree")
	assert.ErrorContains(t, pin(unpacked(t, packageFiles), "libother-dev"), "add it to gen/project")
	assert.ErrorContains(t, pin(unpacked(t, but(map[string]string{"share/man/man3/mult_to_ibv_rate.3": ""})),
		"libibverbs-dev"),
		"no man page mult_to_ibv_rate.3 in ")
	assert.ErrorContains(t, pin(unpacked(t, but(map[string]string{"share/man/man3/ibv_wr_send.3": "-> gone.3"})),
		"libibverbs-dev"),
		"man page ibv_wr_send.3 is a link to gone.3, which is not among the pages")
}

func TestDetect(t *testing.T) {
	other := pinned(t)
	other.Name = "8.0"
	other.Packages[0].Headers[3].Sum = sumA
	l := &Lock{Releases: []*Release{other, pinned(t)}}
	root := unpacked(t, packageFiles)
	assert.Equal(t, "9.0", nameOf(l.Detect(rdmaCore, filepath.Join(root, "usr/include"))))
	assert.Equal(t, "9.0", nameOf(l.Detect(rdmaCore, sourceTree(t))))
	sameHeaders := pinned(t) // a release with the same headers
	sameHeaders.Name = "7.0"
	sameHeaders.Packages[0].Pages[0].Sum = sumA
	lock := &Lock{Releases: []*Release{sameHeaders, pinned(t)}}
	assert.Equal(t, "9.0", nameOf(lock.Detect(rdmaCore, filepath.Join(root, "usr/include"))), "by its man pages")
	assert.Equal(t, "", nameOf(l.Detect(rdmaCore, t.TempDir())))
	write(t, filepath.Join(root, "usr/include/infiniband/verbs_api.h"), []byte("int patched;\n"))
	assert.Equal(t, "", nameOf(l.Detect(rdmaCore, filepath.Join(root, "usr/include"))))
}

// nameOf returns the name of a release, or "" for nil.
func nameOf(r *Release) string {
	if r == nil {
		return ""
	}
	return r.Name
}
