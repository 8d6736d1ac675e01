// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/headers"
)

func read(t *testing.T, text string, targets ...string) *model.Release {
	t.Helper()
	r, err := Read(Source{Release: "1.0", Include: fstest.MapFS{"infiniband/a.h": {Data: []byte(text)}},
		Name: "include", Headers: []string{"infiniband/a.h"}, Targets: targets})
	require.NoError(t, err)
	return r
}

func TestMissingAndUnreadable(t *testing.T) {
	_, err := Read(Source{Release: "1.0", Include: fstest.MapFS{}, Name: "/opt/include",
		Headers: []string{"infiniband/a.h", "infiniband/b.h"}})
	assert.ErrorContains(t, err, "/opt/include/infiniband/a.h: no such header; install libibverbs-dev")
	assert.ErrorContains(t, err, "/opt/include/infiniband/b.h: no such header")

	_, err = Read(Source{Release: "1.0", Include: unreadable{}, Name: "/opt/include",
		Headers: []string{"infiniband/a.h"}})
	assert.ErrorIs(t, err, fs.ErrPermission)
	assert.ErrorContains(t, err, "/opt/include/infiniband/a.h")

	_, err = Read(Source{Release: "1.0", Include: fstest.MapFS{"infiniband/a.h": {}},
		Headers: []string{"infiniband/a.h"}, Targets: []string{"vax"}})
	assert.ErrorContains(t, err, "vax")
}

type unreadable struct{}

func (unreadable) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
}

// TestUnlistedHeader checks that including a header of the project that is not listed as public is an error.
func TestUnlistedHeader(t *testing.T) {
	_, err := Read(Source{
		Release: "1.0", Name: "include", Headers: []string{"infiniband/a.h"}, Targets: []string{"amd64"},
		Include: fstest.MapFS{
			"infiniband/a.h":   {Data: []byte("#include <infiniband/new.h>\n")},
			"infiniband/new.h": {Data: []byte("#ifndef NEW_H\n#define NEW_H\nstruct ibv_new { int a; };\n#endif\n")},
		},
	})
	assert.ErrorContains(t, err, "include/infiniband/new.h:3: header infiniband/new.h is not listed as a public header")
}

// TestOtherSystem checks that a project for another system than Linux is parsed with the C library of that system, and
// that a static variable in a header is no declaration.
func TestOtherSystem(t *testing.T) {
	text := "#include <pthread.h>\n#include <sys/socket.h>\nstatic void *ibv_own = 0;\n" +
		"struct ibv_a { pthread_mutex_t m; struct sockaddr s; };\n"
	sizes := map[string]int64{}
	for _, of := range []string{"freebsd", "rdma-core"} {
		r, err := Read(Source{Project: of, Release: "1.0", Include: fstest.MapFS{"infiniband/verbs.h": {Data: []byte(text)}},
			Name: "include", Headers: []string{"infiniband/verbs.h"}, Targets: []string{"arm64"}})
		require.NoError(t, err, of)
		assert.Equal(t, of, r.Project)
		sizes[of] = r.Headers[0].Records[0].Size.On("arm64")
		assert.Empty(t, r.Headers[0].Macros)
	}
	assert.Equal(t, map[string]int64{"freebsd": 8 + 16, "rdma-core": 48 + 16}, sizes)
	assert.Equal(t, []string{"amd64", "arm64"}, headers.TargetsOf("freebsd"))
	_, err := Read(Source{Project: "freebsd", Release: "1.0", Include: fstest.MapFS{"infiniband/verbs.h": {}},
		Headers: []string{"infiniband/verbs.h"}, Targets: []string{"s390x"}})
	assert.ErrorContains(t, err, "s390x")
}

// TestHermetic checks that the C library headers of the build machine are never used, whatever the include directory
// contains.
func TestHermetic(t *testing.T) {
	_, err := Read(Source{
		Release: "1.0", Name: "include", Headers: []string{"infiniband/a.h"}, Targets: []string{"amd64"},
		Include: fstest.MapFS{
			"infiniband/a.h": {Data: []byte("#include <stdint.h>\n#include <stdlib.h>\nuint8_t *f(void);\n")},
			"stdint.h":       {Data: []byte("#error header of the build machine\n")},
			"stdlib.h":       {Data: []byte("int nothing;\n")},
		},
	})
	assert.ErrorContains(t, err, "stdlib.h")
	assert.NotContains(t, err.Error(), "header of the build machine")
}

// TestTargets checks that targets may differ only in sizes and offsets.
func TestTargets(t *testing.T) {
	r := read(t, "#include <pthread.h>\nstruct t { pthread_mutex_t m; int after; };\n")
	assert.Equal(t, headers.Targets(), r.Targets)
	rec := r.Headers[0].Records[0]
	assert.Equal(t, "48 (arm64: 56)", rec.Size.String())
	assert.Equal(t, "40 (arm64: 48)", rec.Fields[1].Offset.String())

	_, err := Read(Source{
		Release: "1.0", Name: "include", Headers: []string{"infiniband/a.h"},
		Include: fstest.MapFS{"infiniband/a.h": {Data: []byte("enum e { A = sizeof(long), B =\n#ifdef " +
			"__aarch64__\n1\n#else\n2\n#endif\n};\n")}},
	})
	assert.ErrorContains(t, err, "amd64 and arm64")
	assert.ErrorContains(t, err, "only sizes and offsets may differ")
}

// TestInline covers each shape of inline function.
func TestInline(t *testing.T) {
	r := read(t, `
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#define ABI ((void *)UINTPTR_MAX)
struct obj; struct ctx;
struct ops { int (*post)(struct obj *o, int n); };
struct ctx { struct ops ops; void *abi; };
struct obj { struct ctx *context; int (*next)(struct obj *o); };
struct ext { int (*resize)(struct obj *o, size_t n); void *(*create)(struct ctx *c); size_t sz; struct ctx context; };
static inline struct ext *get(struct ctx *c) { if (c->abi != ABI) return NULL;
	return (struct ext *)((uintptr_t)c - offsetof(struct ext, context)); }
#define get_op(c, op) ({ struct ext *__v = get(c); \
	(!__v || (__v->sz < sizeof(*__v) - offsetof(struct ext, op)) || !__v->op) ? NULL : __v; })
int helper(struct obj *o, size_t n);
static inline int next(struct obj *o) { return o->next(o); }
static inline int post(struct obj *o, int n) { return o->context->ops.post(o, n); }
static inline int resize(struct obj *o, size_t n) {
	struct ext *vctx = get_op(o->context, resize); if (!vctx) return EOPNOTSUPP; return vctx->resize(o, n); }
static inline void *create(struct ctx *c) {
	struct ext *vctx = get_op(c, create); if (!vctx) { errno = EOPNOTSUPP; return NULL; } return vctx->create(c); }
static inline int resize_or(struct obj *o, size_t n) {
	struct ext *vctx; if (n == 0) return helper(o, 0);
	vctx = get_op(o->context, resize); if (!vctx) return ENOSYS; return vctx->resize(o, n); }
static inline int sized(struct obj *o) { return helper(o, sizeof(*o)); }
static inline int twice(int n) { return 2 * n; }
`, "amd64")
	got := map[string]*model.Inline{}
	for _, f := range r.Headers[0].Funcs {
		got[f.Name] = f.Inline
	}
	assert.Equal(t, &model.Inline{Kind: model.Slot, Object: "o", Struct: "obj", Slot: "next", Args: []string{"o"}},
		got["next"])
	assert.Equal(t, &model.Inline{Kind: model.ContextOp, Object: "o->context", Struct: "ops", Slot: "post",
		Args: []string{"o", "n"}}, got["post"])
	assert.Equal(t, &model.Inline{Kind: model.ExtendedOp, Object: "o->context", Struct: "ext", Slot: "resize",
		Guard: "ext.sz", Absent: "EOPNOTSUPP", Errors: model.ReturnsErrno, Args: []string{"o", "n"}}, got["resize"])
	assert.Equal(t, &model.Inline{Kind: model.ExtendedOp, Object: "c", Struct: "ext", Slot: "create", Guard: "ext.sz",
		Absent: "EOPNOTSUPP", Errors: model.NullErrno, Args: []string{"c"}}, got["create"])
	assert.Equal(t, &model.Inline{Kind: model.Logic, Object: "o->context", Struct: "ext", Slot: "resize",
		Guard: "ext.sz", Absent: "ENOSYS", Errors: model.ReturnsErrno, Calls: []string{"helper"}, Args: []string{"o",
			"n"}}, got["resize_or"])
	assert.Equal(t, &model.Inline{Kind: model.Call, Calls: []string{"helper"}, Args: []string{"o", "sizeof(*o)"}},
		got["sized"])
	assert.Equal(t, &model.Inline{Kind: model.Compute}, got["twice"])
	assert.Equal(t, &model.Inline{Kind: model.Compute}, got["get"])
	assert.Nil(t, got["helper"])
}

// TestConst checks that const is recorded, even for a structure that is defined later or never.
func TestConst(t *testing.T) {
	r := read(t, `
struct t { const struct later *a; const char *b; const struct never **c; char *const d; };
struct later { int x; };
void f(const struct never *a, const struct later *b, struct later *c, const int d);
const struct later *g(void);
`, "amd64")
	var types []string
	for _, f := range r.Headers[0].Records[0].Fields {
		types = append(types, f.Type)
	}
	assert.Equal(t, []string{"const struct later *", "const char *", "const struct never **", "char *"}, types)
	types = nil
	for _, p := range r.Headers[0].Funcs[0].Params {
		types = append(types, p.Type)
	}
	assert.Equal(t, []string{"const struct never *", "const struct later *", "struct later *", "const int"}, types)
	assert.Equal(t, "const struct later *", r.Headers[0].Funcs[1].Result)
}

// TestTargetGroups checks that a target is parsed separately if a header mentions a macro that differs on it.
func TestTargetGroups(t *testing.T) {
	groups := func(text string) [][]string {
		src := Source{Include: fstest.MapFS{"infiniband/a.h": {Data: []byte(text)}},
			Headers: []string{"infiniband/a.h"}, Targets: []string{"amd64", "arm64", "riscv64", "s390x"}}
		all, err := src.targetGroups()
		require.NoError(t, err)
		return all
	}
	assert.Equal(t, [][]string{{"amd64", "riscv64"}, {"arm64"}, {"s390x"}}, groups("struct t { int a; };"),
		"the shim's mutex and the byte order")
	assert.Equal(t, [][]string{{"amd64"}, {"arm64"}, {"riscv64"}, {"s390x"}}, groups("#ifdef __riscv\n#endif"))
}

// TestPragma checks that pragmas that change layouts are rejected, since cc ignores them.
func TestPragma(t *testing.T) {
	_, err := Read(Source{Release: "1.0",
		Include: fstest.MapFS{"infiniband/a.h": {Data: []byte("#pragma once\n#pragma pack(push, 1)\nstruct t { char " +
			"a; int b; };\n")}}, Name: "include", Headers: []string{"infiniband/a.h"}, Targets: []string{"amd64"}})
	assert.ErrorContains(t, err, "include/infiniband/a.h:2")
	assert.ErrorContains(t, err, "#pragma pack ( push , 1 ) is not supported")
}
