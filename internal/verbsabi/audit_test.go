// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/rules"
)

// rdmaCore is the project that most tests are about.
var rdmaCore = project.Named("rdma-core")

// smallVerbs is an artificial verbs.h, small enough to change in every way.
const smallVerbs = `#ifndef VERBS_H
#define VERBS_H
#include <stdint.h>
#include <pthread.h>
#include <infiniband/verbs_api.h>
#define SMALL_LIMIT 7
enum small_op { SMALL_SEND = 2, SMALL_RECV };
struct small_wr {
	uint64_t id;
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
	} wr;
	enum small_op op;
	uint32_t comp_mask;
};
struct small_object {
	pthread_mutex_t lock;
	uint32_t handle;
};
int small_post(struct small_wr *wr, uint32_t count);
static inline int small_count(struct small_wr *wr) { return wr != 0; }
#endif
`

// writeHeaders creates an include directory with the same header under every name that is read.
func writeHeaders(t *testing.T, verbs string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "include")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "infiniband"), 0o755))
	for name, text := range map[string]string{"verbs.h": verbs, "verbs_api.h": "", "ib_user_ioctl_verbs.h": "",
		"tm_types.h": "", "opcode.h": ""} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "infiniband", name), []byte(text), 0o644))
	}
	return dir
}

// smallRelease reads the small header as a recorded release.
func smallRelease(t *testing.T, name, verbs string) *model.Release {
	t.Helper()
	r, err := ReadHeaders(writeHeaders(t, verbs), runtime.GOARCH, rules.Packages[:1])
	require.NoError(t, err)
	r.Name = name
	return r
}

func TestAsk(t *testing.T) {
	older := strings.Replace(smallVerbs, "int small_post(struct small_wr *wr, uint32_t count);\n", "", 1)
	older = strings.Replace(older, ", SMALL_RECV", "", 1)
	primary := smallRelease(t, "2.0", smallVerbs)
	recorded := []*model.Release{smallRelease(t, "1.0", older), primary}
	with := func(old, new string) string {
		require.Contains(t, smallVerbs, old)
		return strings.Replace(smallVerbs, old, new, 1)
	}
	tests := []struct {
		name, verbs string
		verdict     Verdict
		release     string
		want        []string // in lines of the answer
	}{
		{"the same", smallVerbs, Identical, "2.0",
			[]string{"identical: the headers in ",
				" are of rdma-core 2.0; the Go packages ibv were generated from 2.0\n",
				"  5 structs,    9 fields,    2 enumerators,   1 constants,   2 prototypes, 0 mismatches"}},
		{"comments and names of parameters", with("*wr, uint32_t count", "*request, /* how many */ uint32_t n"),
			Identical, "2.0", nil},
		{"older", older, Compatible, "1.0",
			[]string{"fine : function small_post: not in these headers: these headers are older; since 2.0",
				"; 2 differences\n"}},
		{"newer", with("static inline", "int small_new(void);\nstatic inline"), Compatible, "newer than 2.0",
			[]string{"fine : function small_new: only in these headers: these headers are newer"}},
		{"grown", with("comp_mask;", "comp_mask;\n\tuint64_t more;"), Compatible, "newer than 2.0",
			[]string{"fine : record small_wr: size is 40 in these headers, 32 in Go: grown at its end"}},
		{"between", with(", SMALL_RECV", ""), Compatible, "between 1.0 and 2.0",
			[]string{"fine : enumerator SMALL_RECV: not in these headers: these headers are older; since 2.0"}},
		{"offset", with("uint64_t id;", "uint64_t id, id2;"), Incompatible, "newer than 2.0",
			[]string{"wrong: field small_wr.wr.rdma.rkey: offset is 24 in these headers, 16 in Go"}},
		{"enumerator", with("SMALL_SEND = 2", "SMALL_SEND = 3"), Incompatible, "unknown",
			[]string{"wrong: enumerator SMALL_SEND: value is 3 in these headers, 2 in Go",
				"wrong: enumerator SMALL_RECV"}},
		{"constant", with("LIMIT 7", "LIMIT 8"), Incompatible, "unknown",
			[]string{"wrong: constant SMALL_LIMIT: value is 8 in these headers, 7 in Go"}},
		{"prototype", with("uint32_t count", "uint64_t count"), Incompatible, "unknown",
			[]string{"wrong: function small_post: prototype is int (*)(struct small_wr *, uint64_t) in these " +
				"headers, int (*)(struct small_wr *, uint32_t) in Go"}},
		{"type of a member", with("enum small_op op;", "uint32_t op;"), Incompatible, "unknown",
			[]string{"wrong: field small_wr.op: type is uint32_t in these headers, enum small_op in Go"}},
	}
	cc := hostCompiler(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a, err := Ask(context.Background(), Question{
				Only: Headers, Packages: rules.Packages[:1], Include: writeHeaders(t, test.verbs), CC: cc,
				Target: runtime.GOARCH, Primary: rules.Recorded{primary}, Recorded: recorded,
			})
			require.NoError(t, err)
			var b strings.Builder
			require.NoError(t, a.Print(&b, true))
			assert.Equal(t, test.verdict, a.Verdict, b.String())
			assert.Equal(t, test.release, a.Headers[0].Release)
			assert.Equal(t, test.verdict == Incompatible, a.Headers[0].Mismatches() > 0)
			for _, want := range test.want {
				assert.Contains(t, b.String(), want)
			}
		})
	}
}

// TestAskTrustsTheCompiler: if the C compiler and the parser interpret a header differently, the verdict is
// incompatible.
func TestAskTrustsTheCompiler(t *testing.T) {
	tricky := strings.Replace(smallVerbs, "uint64_t id;",
		"#ifdef __GNUC_PATCHLEVEL__\n\tuint64_t id;\n#endif\n#ifdef GOVERBS_COUNT\n\tuint64_t hidden;\n#endif", 1)
	primary := smallRelease(t, "2.0", tricky)
	a, err := Ask(context.Background(), Question{
		Only: Headers, Packages: rules.Packages[:1], Include: writeHeaders(t, tricky), CC: hostCompiler(t),
		Target: runtime.GOARCH, Primary: rules.Recorded{primary}, Recorded: rules.Recorded{primary},
	})
	require.NoError(t, err)
	assert.Equal(t, Incompatible, a.Verdict)
	var b strings.Builder
	require.NoError(t, a.Print(&b, true))
	assert.Contains(t, b.String(), "wrong: the C compiler disagrees with the parser: small_wr,,size: want")
}

func TestAskCannotTell(t *testing.T) {
	primary := smallRelease(t, "2.0", smallVerbs)
	cc := hostCompiler(t)
	ask := func(include string, cc Compiler) error {
		_, err := Ask(context.Background(), Question{Only: Headers, Packages: rules.Packages[:1], Include: include,
			CC: cc, Target: runtime.GOARCH, Primary: rules.Recorded{primary}, Recorded: rules.Recorded{primary}})
		return err
	}
	err := ask(t.TempDir(), cc)
	assert.ErrorIs(t, err, ErrNoHeaders)
	assert.ErrorContains(t, err, "with -I")
	assert.ErrorContains(t, ask(writeHeaders(t, strings.Replace(smallVerbs, "comp_mask;", "comp_mask; float f;", 1)), cc),
		"float")
	assert.ErrorContains(t, ask(writeHeaders(t, smallVerbs+"}"), cc), "verbs.h:")
	assert.ErrorIs(t, ask(writeHeaders(t, smallVerbs), nil), ErrNoCompiler)
	missing := writeHeaders(t, smallVerbs)
	require.NoError(t, os.Remove(filepath.Join(missing, "infiniband", "tm_types.h")))
	assert.ErrorContains(t, ask(missing, cc), "tm_types.h: no such header")
}

func TestStatedRelease(t *testing.T) {
	root := t.TempDir()
	include := filepath.Join(root, "usr/include")
	write := func(dir, text string) {
		dir = filepath.Join(root, "usr", dir)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "libibverbs.pc"), []byte(text), 0o644))
	}
	assert.Empty(t, StatedRelease(include, rdmaCore))
	write("lib/x86_64-linux-gnu/pkgconfig", "Name: libibverbs\nVersion: 1.14.44.0\nLibs: -libverbs\n")
	assert.Equal(t, "44.0", StatedRelease(include, rdmaCore))
	assert.Equal(t, "44.0", StatedRelease(include+"/", rdmaCore))
	write("lib64/pkgconfig", "Version: 1.14.44.0\n")
	assert.Equal(t, "44.0", StatedRelease(include, rdmaCore))
	write("lib/pkgconfig", "Version: 1.18.65.0\n")
	assert.Empty(t, StatedRelease(include, rdmaCore), "the two files disagree")
	write("lib/pkgconfig", "Version: unknown\n")
	assert.Empty(t, StatedRelease(include, rdmaCore))
}

func TestFindHeaders(t *testing.T) {
	cc := hostCompiler(t)
	dir := writeHeaders(t, smallVerbs)
	t.Setenv("C_INCLUDE_PATH", dir)
	found, err := FindHeaders(context.Background(), cc, rdmaCore)
	require.NoError(t, err)
	assert.Equal(t, dir, found)
	found, err = FindHeaders(context.Background(), append(cc, "-nostdinc", "-I"+dir), rdmaCore)
	require.NoError(t, err)
	assert.Equal(t, dir, found)
	t.Setenv("C_INCLUDE_PATH", "")
	_, err = FindHeaders(context.Background(), append(cc, "-nostdinc", "-I"+t.TempDir()), rdmaCore)
	assert.ErrorIs(t, err, ErrNoHeaders)
	assert.ErrorContains(t, err, "install libibverbs-dev")
	_, err = FindHeaders(context.Background(), Compiler{"true"}, rdmaCore)
	assert.ErrorContains(t, err, "with -I")
}

func TestPrintReportsWriteErrors(t *testing.T) {
	h := &Include{Report: &Report{Mismatches: []Mismatch{{}}}, Differences: []Difference{{}}}
	a := &Answer{Headers: []*Include{h}} // four lines
	a.Findings = a.findings()
	for n := range 4 {
		assert.Error(t, a.Print(&fullAfter{n}, true), "after %d lines", n)
	}
	var all strings.Builder
	require.NoError(t, a.Print(&all, true))
	assert.Contains(t, all.String(), "; 1 difference\n")
}

// fullAfter is a writer that fails after n writes.
type fullAfter struct{ n int }

func (w *fullAfter) Write(p []byte) (int, error) {
	if w.n == 0 {
		return 0, errors.New("no space left")
	}
	w.n--
	return len(p), nil
}
