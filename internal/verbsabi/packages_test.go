// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/generated/witness"
)

func packages(t *testing.T, names ...string) []rules.Package {
	t.Helper()
	all, err := Packages(names...)
	require.NoError(t, err)
	return all
}

func TestPackages(t *testing.T) {
	assert.Equal(t, []string{"ibv", "rdmacm", "mlx5dv", "mlx4dv", "efadv", "hnsdv", "manadv", "ionicdv",
		"rpma"}, namesOf(packages(t)))
	assert.Equal(t, []string{"uapi"}, namesOf(packages(t, "uapi")))
	assert.Equal(t, []string{"ibv", "mlx5dv"}, namesOf(packages(t, "mlx5dv", "ibv")))
	assert.Equal(t, []string{"ibv", "efadv"}, namesOf(withImports(packages(t, "efadv"))))
	_, err := Packages("ibv", "mlx6dv")
	assert.EqualError(t, err, `unknown package "mlx6dv"; use one of ibv, rdmacm, mlx5dv, mlx4dv, efadv, `+
		"hnsdv, manadv, ionicdv, rpma, uapi")
	_, err = Packages("freebsd/rdmacm")
	assert.EqualError(t, err, "package freebsd/rdmacm has the layouts of freebsd, but only installations on Linux can be "+
		"checked; use goverbs diff for its differences from rdma-core")
	_, err = Ask(context.Background(), Question{Release: map[string]string{"freebsd": "12.2"}})
	assert.ErrorContains(t, err, "project freebsd has the layouts of freebsd, but only installations on Linux")
	_, err = Ask(context.Background(), Question{Release: map[string]string{"netbsd": "10"}})
	assert.EqualError(t, err, `unknown project "netbsd"; use one of rdma-core, librpma, linux`)
	names := []string{}
	for _, p := range append(witness.All(), witness.UAPI) {
		names = append(names, p.Name)
	}
	assert.Equal(t, names, namesOf(rules.Packages), "every generated package has a witness")
}

// TestRestrict: a restricted release has only the headers of its packages and the C library declarations that they
// need.
func TestRestrict(t *testing.T) {
	primaries, _, err := recordedReleases()
	require.NoError(t, err)
	primary := primaries.Of("rdma-core")[0]
	tags := func(r *model.Release) map[string]model.RecordKind {
		all := map[string]model.RecordKind{}
		for _, h := range r.Headers {
			for _, rec := range h.Records {
				all[rec.Tag] = rec.Kind
			}
		}
		return all
	}
	all := tags(restrict(primary, ofProject(slices.Clone(rules.Packages), "rdma-core")))
	assert.Equal(t, tags(primary), all)
	ibv := tags(restrict(primary, packages(t, "ibv")))
	for _, tag := range []string{"ibv_qp", "timespec", "pthread_mutex_t", "ib_uverbs_query_port_resp",
		"_compat_ibv_port_attr"} {
		assert.Contains(t, ibv, tag)
	}
	for _, tag := range []string{"rdma_cm_id", "sockaddr_storage", "epoll_event", "mlx5dv_qp", "mlx5dv_dek",
		"efadv_cq"} {
		assert.Contains(t, all, tag)
		assert.NotContains(t, ibv, tag)
	}
	cm := tags(restrict(primary, packages(t, "rdmacm")))
	assert.Contains(t, cm, "in6_addr", "sockaddr_in6 needs it")
	assert.Equal(t, model.Incomplete, cm["epoll_event"])
	assert.NotContains(t, cm, "ibv_qp")
	assert.NotContains(t, cm, "pthread_spinlock_t")
}

// TestAskSomePackages: the headers of only some packages are installed.
func TestAskSomePackages(t *testing.T) {
	real := realHeaders(t, "65.0")
	primary, all, err := recordedReleases()
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "include")
	require.NoError(t, os.CopyFS(dir, os.DirFS(real)))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "rdma")))
	ask := func(names ...string) (*Answer, string, error) {
		a, err := Ask(context.Background(), Question{
			Packages: packages(t, names...), Include: dir, CC: hostCompiler(t), Target: runtime.GOARCH, Only: Headers,
			Go: witness.All(), Primary: primary, Recorded: all,
		})
		if err != nil {
			return nil, "", err
		}
		var b strings.Builder
		require.NoError(t, a.Print(&b, true))
		return a, b.String(), nil
	}
	a, text, err := ask()
	require.NoError(t, err)
	assert.Equal(t, Identical, a.Verdict, text)
	assert.Equal(t, []string{"ibv", "mlx5dv", "mlx4dv", "efadv", "hnsdv", "manadv", "ionicdv"},
		a.Headers[0].Packages)
	assert.Contains(t, text, "\nnot installed: headers of librpma: no headers of librpma in "+dir)
	assert.Contains(t, text, "\nnot installed: rdmacm: rdma/rdma_cma.h is not in "+dir+"; install librdmacm-dev\n")
	assert.NoError(t, a.Require([]string{"ibv", "efadv"}))
	assert.ErrorContains(t, a.Require([]string{"ibv", "rdmacm"}),
		"rdmacm is required and was not checked: rdma/rdma_cma.h is not in")
	assert.ErrorContains(t, a.Require([]string{"libibverbs.so.1"}), "not requested")
	assert.ErrorContains(t, a.Require([]string{"ibv_wc"}), "checked in debug information only; use -dwarf")
	assert.ErrorContains(t, a.Require([]string{"ibv_wcc"}), "no package, library or type has this name")

	a, text, err = ask("mlx5dv", "rdmacm")
	require.NoError(t, err)
	assert.Equal(t, Identical, a.Verdict, text)
	assert.Equal(t, []string{"mlx5dv"}, a.Headers[0].Packages)
	assert.Less(t, a.Headers[0].Report.Counts.Prototypes, 184, "those of verbs.h are not requested")

	_, _, err = ask("rdmacm")
	assert.ErrorIs(t, err, ErrNoHeaders)
	assert.ErrorContains(t, err, "install librdmacm-dev")

	require.NoError(t, os.Remove(filepath.Join(dir, "infiniband/mlx4dv.h")))
	changed := filepath.Join(dir, "infiniband/mlx5dv.h")
	old, err := os.ReadFile(changed)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(changed, 0o644))
	require.NoError(t,
		os.WriteFile(changed,
			[]byte(strings.Replace(string(old), "MLX5DV_CONTEXT_MASK_SWP", "MLX5DV_CONTEXT_MASK_OTHER", 1)), 0o644))
	a, text, err = ask()
	require.NoError(t, err)
	assert.Equal(t, Incompatible, a.Verdict, text)
	assert.Contains(t, text, "wrong: enumerator MLX5DV_CONTEXT_MASK_SWP: not in these headers")
	assert.Contains(t, text, "not installed: mlx4dv")
	a, text, err = ask("ibv", "efadv")
	require.NoError(t, err)
	assert.Equal(t, Identical, a.Verdict, text)
}

// TestAskLibrariesAlone: libraries are installed without headers, as on a machine that only runs programs.
func TestAskLibrariesAlone(t *testing.T) {
	primary, all, err := recordedReleases()
	require.NoError(t, err)
	q := Question{CC: append(hostCompiler(t), "-nostdinc"), Target: runtime.GOARCH, LibraryDirs: []string{t.TempDir()},
		Primary: primary, Recorded: all}
	_, err = Ask(context.Background(), q)
	assert.ErrorIs(t, err, ErrNoHeaders)
	q.Only = Libraries
	_, err = Ask(context.Background(), q)
	assert.ErrorContains(t, err, "install libibverbs1")

	library := buildLibrary(t, "libibverbs.so.1", "int ibv_fork_init(void) { return 0; }\n", "")
	q.Only, q.LibraryDirs, q.Release = "", []string{filepath.Dir(library)}, map[string]string{"rdma-core": "1.0"}
	a, err := Ask(context.Background(), q)
	require.NoError(t, err)
	assert.Equal(t, Compatible, a.Verdict)
	assert.Empty(t, a.Headers)
	assert.Equal(t, "headers of rdma-core", a.NotInstalled[0].Name)
	assert.Len(t, a.Libraries, 1)
	assert.ErrorContains(t, a.Require([]string{"ibv"}), "ibv is required and was not checked: no headers of rdma-core")
	assert.ErrorContains(t, a.Require([]string{"rpma"}), "rpma is required and was not checked: no headers of librpma")
	q.Release = map[string]string{"rdma-core": "44.0"}
	a, err = Ask(context.Background(), q)
	require.NoError(t, err)
	assert.Equal(t, Incompatible, a.Verdict, "a library of 44.0 has more than that")
	var b strings.Builder
	require.NoError(t, a.Print(&b, true))
	assert.Contains(t, b.String(), "wrong: libibverbs.so.1: symbol ibv_open_device: removed from this library; since 33.2 or earlier\n")
}
