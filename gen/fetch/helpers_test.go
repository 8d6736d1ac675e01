// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"bytes"
	"compress/gzip"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/project"
)

// rdmaCore is the project of the releases in these tests.
const rdmaCore = "rdma-core"

// packageFiles holds the files of a small package by their paths below usr/. unpacked compresses the pages and creates
// the links.
var packageFiles = map[string]string{
	"include/infiniband/verbs.h":               "int verbs;\n",
	"include/infiniband/verbs_api.h":           "int api;\n",
	"include/infiniband/ib_user_ioctl_verbs.h": "int ioctl;\n",
	"include/infiniband/tm_types.h":            "int tm;\n",
	"include/infiniband/arch.h":                "int unread;\n",
	"share/man/man3/ibv_post_send.3":           ".TH post_send\n",
	"share/man/man3/ibv_wr_post.3":             ".TH wr_post\n",
	"share/man/man3/ibv_wr_send.3":             "-> ibv_wr_post.3",
	"share/man/man3/ibv_rate_to_mbps.3":        ".TH rate\n",
	"share/man/man3/mbps_to_ibv_rate.3":        "-> ibv_rate_to_mbps.3",
	"share/man/man3/mult_to_ibv_rate.3":        "-> ibv_rate_to_mbps.3",
	"share/man/man3/mlx5dv_dump.3":             ".TH unread\n",
}

func gz(t *testing.T, text string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Bytes()
}

func write(t *testing.T, file string, data []byte) {
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, data, 0o644))
}

// unpacked creates the directories and files of a package as dpkg unpacks it.
func unpacked(t *testing.T, files map[string]string) string {
	root := t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, "usr", name)
		target, isLink := strings.CutPrefix(text, "-> ")
		switch {
		case isLink:
			require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
			require.NoError(t, os.Symlink(target+".gz", file+".gz"))
		case strings.HasPrefix(name, "share/man"):
			write(t, file+".gz", gz(t, text))
		default:
			write(t, file, []byte(text))
		}
	}
	return root
}

// pinned returns the release of packageFiles.
func pinned(t *testing.T) *Release {
	rel := &Release{
		Project: rdmaCore, Name: "9.0", Role: Primary, Suites: []string{"sid", "forky"},
		Packages: []*Package{{Name: "libibverbs-dev", Version: "9.0-1"}},
	}
	require.NoError(t, Pin(unpacked(t, packageFiles), rel))
	return rel
}

// but returns packageFiles with changes. An empty text removes a file.
func but(changes map[string]string) map[string]string {
	files := maps.Clone(packageFiles)
	for name, text := range changes {
		files[name] = text
		if text == "" {
			delete(files, name)
		}
	}
	return files
}

// below lists all files and links below dir.
func below(t *testing.T, dir string) []string {
	var all []string
	require.NoError(t, filepath.WalkDir(dir, func(file string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(dir, file)
			all = append(all, name)
		}
		return err
	}))
	slices.Sort(all)
	return all
}

// TestMain replaces the packages of the project with smaller ones.
func TestMain(m *testing.M) {
	project.Named(rdmaCore).Packages = []project.Package{{
		Name: "libibverbs-dev",
		Headers: []string{"infiniband/verbs.h", "infiniband/verbs_api.h", "infiniband/ib_user_ioctl_verbs.h",
			"infiniband/tm_types.h"},
		Pages: []string{"ibv_*.3", "mbps_to_ibv_rate.3", "mult_to_ibv_rate.3"},
	}, {
		Name: "libibverbs1t64", Formerly: "libibverbs1", Libraries: []string{soname},
	}}
	os.Exit(m.Run())
}
