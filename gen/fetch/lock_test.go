// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/rules"
)

const (
	sumA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	sumB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

	head = "release rdma-core 65.0 primary\nsuites sid\npackage libibverbs-dev 65.0-1\n" // lines 1 to 3 of the lock
)

func TestParseLock(t *testing.T) {
	got, err := ParseLock("l", []byte(`# all of it
release rdma-core 65.0 primary # trailing
suites sid forky

package libibverbs-dev 65.0-1.1
  header `+sumA+` infiniband/verbs.h
page `+sumB+` ibv_wr_post.3
link ibv_wr_send.3 -> ibv_wr_post.3
package libibverbs1 65.0-1.1+b1
library `+sumA+` libibverbs.so.1
library `+sumB+` libibumad.so.3 of 44.0
release rdma-core 44.0 recorded
suites bookworm
package librdmacm-dev 1:44.0-2~bpo+1
header `+sumB+` rdma/rdma_cma.h
`))
	require.NoError(t, err)
	want := &Lock{Releases: []*Release{{
		Project: rdmaCore, Name: "65.0", Role: Primary, Suites: []string{"sid", "forky"},
		Packages: []*Package{{
			Name: "libibverbs-dev", Version: "65.0-1.1",
			Headers: []File{{Name: "infiniband/verbs.h", Sum: sumA}},
			Pages:   []File{{Name: "ibv_wr_post.3", Sum: sumB}},
			Links:   []Link{{"ibv_wr_send.3", "ibv_wr_post.3"}},
		}, {
			Name: "libibverbs1", Version: "65.0-1.1+b1",
			Libraries: []File{{Name: "libibverbs.so.1", Sum: sumA},
				{Name: "libibumad.so.3", Sum: sumB, Of: "44.0"}},
		}},
	}, {
		Project: rdmaCore, Name: "44.0", Role: Recorded, Suites: []string{"bookworm"},
		Packages: []*Package{{
			Name: "librdmacm-dev", Version: "1:44.0-2~bpo+1",
			Headers: []File{{Name: "rdma/rdma_cma.h", Sum: sumB}},
		}},
	}}}
	assert.Equal(t, want, got)
	assert.Equal(t, "65.0", got.Primary(rdmaCore).Name)
	assert.Equal(t, map[string]string{"libibumad.so.3": "44.0"}, want.Releases[0].StandIns())

	again, err := ParseLock("l", got.Encode())
	require.NoError(t, err)
	assert.Equal(t, want, again)

	rel, err := got.Release(rdmaCore, "44.0")
	require.NoError(t, err)
	assert.Equal(t, want.Releases[1], rel)
	_, err = got.Release(rdmaCore, "1.0")
	assert.EqualError(t, err, "rdma-core 1.0 is not pinned in headers.lock (pinned: 65.0, 44.0)")
}

func TestParseLockErrors(t *testing.T) {
	const file = "header " + sumA + " infiniband/verbs.h\n" // line 4 after head
	for _, c := range []struct{ text, want string }{
		{"", `l: no release is pinned`},
		{"# nothing\n", `l: no release is pinned`},
		{"releases 1.0\n",
			`l:1: unknown word "releases": want release, suites, package, header, page, link or library`},
		{"release 65.0\n", `l:1: "release" has 2 words: want "release PROJECT NAME primary|recorded"`},
		{"release rdma-core 65.0 first\n", `l:1: role "first" of release 65.0: want primary or recorded`},
		{"release rdma-core ../x primary\n", `l:1: "../x" is not the number of a release`},
		{"\nsuites sid\n", `l:2: "suites" before the first "release" line`},
		{"release rdma-core 65.0 primary\npackage p 1\n", `l:2: "p" is not the name of a package`},
		{"release rdma-core 65.0 primary\npackage -o=x 1\n", `l:2: "-o=x" is not the name of a package`},
		{"release rdma-core 65.0 primary\npackage pkg v1\n", `l:2: "v1" is not the version of a package`},
		{"release rdma-core 65.0 primary\npackage pkg\n", `l:2: "package" has 2 words: want "package NAME VERSION"`},
		{"release rdma-core 65.0 primary\nsuites\n", `l:2: "suites" has 1 words: want "suites NAME..."`},
		{"release rdma-core 65.0 primary\nsuites sid Sid\n", `l:2: "Sid" is not the name of a suite`},
		{"release rdma-core 65.0 primary\nsuites sid sid\n", `l:2: suite sid is named twice`},
		{"release rdma-core 65.0 primary\nsuites sid\nsuites sid\n", `l:3: release 65.0 has a second "suites" line`},
		{"release rdma-core 65.0 primary\n" + file, `l:2: "header" before the first "package" line of release 65.0`},
		{"release rdma-core 65.0 primary\npackage pkg 1\n", `l:1: release 65.0 has no suites`},
		{"release rdma-core 65.0 primary\nsuites sid\n", `l:1: release 65.0 has no package`},
		{"release rdma-core 65.0 primary\nsuites sid\nrelease rdma-core 44.0 recorded\n",
			`l:3: release 65.0 has no package (it began in line 1)`},
		{head, `l:1: release 65.0: package libibverbs-dev has no header, no page and no library`},
		{head + "header " + sumA + "\n", `l:4: "header" has 2 words: want "header SHA256 PATH"`},
		{head + "header abc infiniband/verbs.h\n", `l:4: "abc" is not a sha256: want 64 lower-case hexadecimal digits`},
		{head + "header " + strings.ToUpper(sumA) + " infiniband/verbs.h\n",
			`l:4: "` + strings.ToUpper(sumA) + `" is not a sha256: want 64 lower-case hexadecimal digits`},
		{head + "header " + sumA + " infiniband/../../x.h\n",
			`l:4: "infiniband/../../x.h" is not the name of a header`},
		{head + "header " + sumA + " /etc/x.h\n", `l:4: "/etc/x.h" is not the name of a header`},
		{head + "page " + sumA + " man3/x.3\n", `l:4: "man3/x.3" is not the name of a man page`},
		{head + "page " + sumA + " x.3.gz\n", `l:4: "x.3.gz" is not the name of a man page`},
		{head + "library " + sumA + " x86_64-linux-gnu/libibverbs.so.1\n",
			`l:4: "x86_64-linux-gnu/libibverbs.so.1" is not the name of a library`},
		{head + "library " + sumA + " libibverbs.so\n", `l:4: "libibverbs.so" is not the name of a library`},
		{head + "library " + sumA + " a.so.1 of 65.0\n",
			`l:4: library a.so.1: "65.0" is not the number of another release`},
		{head + "library " + sumA + "\n", `l:4: "library" has 2 words: want "library SHA256 SONAME [of RELEASE]"`},
		{head + file + file, `l:5: infiniband/verbs.h is pinned twice in release 65.0 (first in line 4)`},
		{head + "page " + sumA + " a.3\nlink a.3 -> a.3\n",
			`l:5: a.3 is pinned twice in release 65.0 (first in line 4)`},
		{head + "link a.3 => b.3\n", `l:4: "=>" instead of "->": want "link NAME -> PAGE"`},
		{head + "link a.3 -> ../b.3\n", `l:4: "../b.3" is not the name of a man page`},
		{head + file + "link a.3 -> b.3\n",
			`l:1: release 65.0: link a.3 in line 5: package libibverbs-dev has no page b.3`},
		{head + file + "package libibverbs-dev 2\n", `l:5: package libibverbs-dev is named twice in release 65.0`},
		{head + file + "release rdma-core 65.0 recorded\n", `l:5: release 65.0 is pinned twice`},
		{head + file + "release rdma-core 44.0 primary\n", `l:5: release 44.0 is primary, but release 65.0 already is`},
		{strings.Replace(head, "primary", "recorded", 1) + file,
			`l: no release of rdma-core is primary: mark one "release" line as primary`},
	} {
		t.Run(c.want, func(t *testing.T) {
			_, err := ParseLock("l", []byte(c.text))
			assert.EqualError(t, err, c.want)
		})
	}
}

// TestCommittedLock checks that the committed lock has the format of Encode, and pins everything that gen/project
// lists.
func TestCommittedLock(t *testing.T) {
	data, err := os.ReadFile("../../headers/headers.lock")
	require.NoError(t, err)
	l, err := ParseLock("headers/headers.lock", data)
	require.NoError(t, err)
	assert.Equal(t, string(data), string(l.Encode()), "pin the releases again instead of editing headers.lock")
	assert.Equal(t, "65.0", l.Primary(rdmaCore).Name)
	assert.Equal(t, "1.3.0", l.Primary("librpma").Name)
	libraries := map[string][]string{rdmaCore: {"libibverbs.so.1", "librdmacm.so.1"}, "librpma": {"librpma.so.0"}}
	for _, r := range l.Releases {
		var have, sonames []string
		for _, p := range r.Packages {
			for _, l := range p.Libraries {
				sonames = append(sonames, l.Name)
			}
			for _, h := range p.Headers {
				have = append(have, h.Name)
			}
		}
		read := slices.DeleteFunc(rules.PublicHeaders(r.Project), func(name string) bool {
			return r.Role == Recorded && slices.Contains(project.Named(r.Project).Later, name)
		})
		assert.Subset(t, have, read, "headers of %s", r)
		assert.Equal(t, libraries[r.Project], sonames, "libraries of %s", r)
	}
}

func FuzzParseLock(f *testing.F) {
	f.Add(head + "page " + sumA + " a.3\nlink b.3 -> a.3\n")
	f.Add("release rdma-core 1 recorded\n")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseLock("l", []byte(text))
		if err != nil {
			return
		}
		again, err := ParseLock("l", l.Encode())
		require.NoError(t, err)
		assert.Equal(t, l, again)
	})
}

// TestStandIns checks that pages of another release are distinguished from the release's own pages, and from those read
// as Markdown.
func TestStandIns(t *testing.T) {
	sum := strings.Repeat("0", 64)
	text := "release rdma-core 66.0 primary\nsuites none\npackage libibverbs-dev 66.0\n" +
		"page " + sum + " ibv_a.3\npage " + sum + " ibv_b.3 of 65.0\npage " + sum + " ibv_c.3 of 65.0\npage " + sum +
		" ibv_c.3.md\n" +
		"page " + sum + " ibv_d.3 of 65.0\npage " + sum + " ibv_d.3.md of 64.0\n"
	lock, err := ParseLock("l", []byte(text))
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"ibv_b.3": "65.0", "ibv_d.3": "64.0"}, lock.Releases[0].StandIns())
	assert.True(t, strings.HasSuffix(string(lock.Encode()), text))
	for line, want := range map[string]string{
		"ibv_a.3 of":            `"page" has 4 words`,
		"ibv_a.3 from 65.0":     `"page" has 5 words`,
		"ibv_a.3 of 65.0 65.0":  `"page" has 6 words`,
		"ibv_a.3 of ../x":       `page ibv_a.3: "../x" is not the number of another release`,
		"ibv_a.3 of 66.0":       `page ibv_a.3: "66.0" is not the number of another release`,
		"infiniband/a.3 of 1.0": "is not the name of a man page",
	} {
		_, err := ParseLock("l", []byte("release rdma-core 66.0 primary\nsuites none\npackage libibverbs-dev 66.0\n"+
			"page "+sum+" "+line+"\n"))
		assert.ErrorContains(t, err, want, line)
	}
}

// TestDifferences covers every way in which two pins of a release can differ.
func TestDifferences(t *testing.T) {
	pin := func(files ...File) *Release {
		return &Release{Packages: []*Package{{Headers: files, Links: []Link{{"ibv_x.3", "ibv_y.3"}}}}}
	}
	a := pin(File{Name: "a.h", Sum: "1"}, File{Name: "b.h", Sum: "2"})
	assert.Empty(t, a.Differences(a))
	assert.Equal(t, []Diff{{"include/a.h", "1", "3"}, {"include/b.h", "2", "<missing>"},
		{"include/c.h", "<not pinned>", "4"}},
		a.Differences(pin(File{Name: "a.h", Sum: "3"}, File{Name: "c.h", Sum: "4"})))
	b := pin(a.Packages[0].Headers...)
	b.Packages[0].Links[0].Target = "ibv_z.3"
	assert.Equal(t, []Diff{{"man/ibv_x.3", "<link to ibv_y.3>", "<link to ibv_z.3>"}}, a.Differences(b))
}
