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

const cacheDir = "../../headers/cache"

// realHeaders returns the include directory of a pinned release of rdma-core.
func realHeaders(t *testing.T, release string) string {
	t.Helper()
	dir := filepath.Join(cacheDir, release, "include")
	if _, err := os.Stat(filepath.Join(dir, "infiniband", "verbs.h")); err != nil {
		t.Skipf("the headers of rdma-core %s are unavailable (%v); run make headers", release, err)
	}
	return dir
}

// TestRecordedModels checks every recorded model against its headers, with every C compiler of this machine.
func TestRecordedModels(t *testing.T) {
	primary, all, err := recordedReleases()
	require.NoError(t, err)
	s, err := Summarize(context.Background(), cacheDir, primary, all)
	require.NoError(t, err)
	var b strings.Builder
	if err := s.Print(&b); len(s.Reports) == 0 {
		t.Skipf("%v:\n%s", err, b.String())
	} else {
		require.NoError(t, err)
	}
	t.Logf("\n%s", b.String())
	assert.Zero(t, s.Mismatches(), "%s", b.String())
	checked := map[string]bool{}
	for _, r := range s.Reports {
		checked[r.Release+" "+r.Target] = true
		w, err := NewWitness(recordedModel(t, r.Release), r.Target)
		require.NoError(t, err)
		assert.Equal(t, len(w.checks), r.Facts)
	}
	here := 0
	for _, r := range all {
		if hasHeaders(filepath.Join(cacheDir, rules.FileOf(r), "include"), project.Named(r.Project)) == nil {
			here++
			assert.True(t, checked[r.Name+" "+runtime.GOARCH], "the machine's own target is always checked")
		}
	}
	assert.Equal(t, len(all)*len(all[0].Targets), len(s.Reports)+len(s.Skipped),
		"every release and target is named")
	assert.Zero(t, len(s.Reports)%max(1, here), "the same targets for every release")
}

// TestCountsOfPrimary counts the declarations of the model independently, so that the witness does not lose any.
func TestCountsOfPrimary(t *testing.T) {
	primaries, _, err := recordedReleases()
	require.NoError(t, err)
	primary := primaries.Of("rdma-core")[0]
	w, err := NewWitness(primary, "amd64")
	require.NoError(t, err)
	var want Counts
	var fields func(rec *model.Record)
	fields = func(rec *model.Record) {
		for _, f := range rec.Fields {
			if f.Name != "" {
				want.Fields++
			}
			if f.Record != nil {
				if f.Name != "" {
					want.Structs++
				}
				fields(f.Record)
			}
		}
	}
	for _, h := range primary.Headers {
		for _, rec := range h.Records {
			if rec.Kind != model.Incomplete {
				want.Structs++
			}
			fields(&rec)
		}
		for _, e := range h.Enums {
			want.Enumerators += len(e.Enumerators)
		}
		for _, m := range h.Macros {
			if m.Kind == model.Constant || m.Kind == model.Alias {
				want.Constants++
			}
		}
		want.Prototypes += len(h.Funcs)
	}
	assert.Equal(t, want, w.Counts)
	assert.GreaterOrEqual(t, want.Structs, 300)
	assert.GreaterOrEqual(t, want.Enumerators, 1000)
	assert.GreaterOrEqual(t, want.Prototypes, 477) // 184 of verbs.h, 87 of them extern
}

// TestRealMutations: each change of the real model, such as an offset, an enumerator or a prototype, is reported by
// name, and nothing else is reported.
func TestRealMutations(t *testing.T) {
	include := realHeaders(t, "65.0")
	tests := []struct {
		name   string
		mutate func(r *model.Release)
		want   string
	}{
		{"offset", func(r *model.Release) {
			f := findField(t, findField(t, findField(t, findRecord(t, r, "ibv_send_wr"), "wr").Record, "rdma").Record,
				"rkey")
			f.Offset = model.Same(f.Offset.Default + 4)
		}, "ibv_send_wr,wr.rdma.rkey,offset: want 52, found 48"},
		{"size", func(r *model.Release) { findRecord(t, r, "ibv_wc").Size = model.Same(56) },
			"ibv_wc,,size: want 56, found 48"},
		{"type", func(r *model.Release) { findRecord(t, r, "ibv_sge").Fields[1].Type = "__s32" },
			"ibv_sge,length,type: want __s32 *, found uint32_t *"},
		{"slot", func(r *model.Release) { findField(t, findRecord(t, r, "ibv_qp_ex"), "wr_send").Func.Result = "int" },
			"ibv_qp_ex,wr_send,type: want int (**)(struct ibv_qp_ex *), found void (**)(struct ibv_qp_ex *)"},
		{"opaque", func(r *model.Release) { findRecord(t, r, "pthread_cond_t").Size = model.Same(56) },
			"pthread_cond_t,,size: want 56, found 48"},
		{"enumerator", func(r *model.Release) { findEnum(t, r, "ibv_wr_opcode").Enumerators[2].Value = "300" },
			"ibv_wr_opcode,IBV_WR_SEND,value: want 300, found 2"},
		{"constant", func(r *model.Release) { *findMacro(t, r, "IBV_DEVICE_RAW_SCATTER_FCS").Value = "17179869185" },
			"-,IBV_DEVICE_RAW_SCATTER_FCS,value: want 17179869185, found 17179869184"},
		{"alias", func(r *model.Release) { findMacro(t, r, "IBV_QPF_GRH_REQUIRED").Target = "IB_UVERBS_QPF" },
			"-,IBV_QPF_GRH_REQUIRED,target"},
		{"extern prototype", func(r *model.Release) { findFunc(t, r, "ibv_modify_qp").Params[2].Type = "unsigned int" },
			"ibv_modify_qp,,prototype: want int (*)(struct ibv_qp *, struct ibv_qp_attr *, unsigned int)"},
		{"prototype that a macro hides", func(r *model.Release) { findFunc(t, r, "ibv_query_port").Result = "long" },
			"ibv_query_port,,prototype"},
		{"packed structure", func(r *model.Release) { findRecord(t, r, "mlx5_wqe_ctrl_seg").Size = model.Same(20) },
			"mlx5_wqe_ctrl_seg,,size: want 20, found 16"},
		{"member of a packed structure", func(r *model.Release) {
			findField(t, findRecord(t, r, "mlx5_wqe_ctrl_seg"), "signature").Offset = model.Same(12)
		}, "mlx5_wqe_ctrl_seg,signature,offset: want 12, found"},
		{"constant of mlx5dv",
			func(r *model.Release) { findEnum(t, r, "mlx5dv_context_comp_mask").Enumerators[1].Value = "3" },
			"mlx5dv_context_comp_mask,MLX5DV_CONTEXT_MASK_SWP,value: want 3, found 2"},
		{"member of rdmacm",
			func(r *model.Release) { findField(t, findRecord(t, r, "rdma_cm_id"), "qp").Offset = model.Same(32) },
			"rdma_cm_id,qp,offset: want 32, found 24"},
		{"variadic function of rsocket.h", func(r *model.Release) { findFunc(t, r, "rfcntl").Variadic = false },
			"rfcntl,,prototype"},
		{"size of efadv", func(r *model.Release) { findRecord(t, r, "efadv_qp_init_attr").Size = model.Same(16) },
			"efadv_qp_init_attr,,size: want 16, found 24"},
		{"enumerator of mlx4dv",
			func(r *model.Release) { findEnum(t, r, "mlx4dv_obj_type").Enumerators[0].Value = "9" },
			"mlx4dv_obj_type,MLX4DV_OBJ_QP,value: want 9, found 1"},
		{"inline prototype", func(r *model.Release) { findFunc(t, r, "ibv_wr_send").Params[0].Type = "void *" },
			"ibv_wr_send,,prototype"},
	}
	cc := hostCompiler(t)
	before, err := CWitness(context.Background(), cc, include, recordedModel(t, "65.0"), runtime.GOARCH)
	require.NoError(t, err)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			mutant := recordedModel(t, "65.0")
			test.mutate(mutant)
			r, err := CWitness(context.Background(), cc, include, mutant, runtime.GOARCH)
			require.NoError(t, err)
			var fresh []string
			for _, m := range r.Mismatches {
				if !contains(before, m.Item) {
					fresh = append(fresh, m.String())
				}
			}
			require.Len(t, fresh, 1, "%q", fresh)
			assert.Contains(t, fresh[0], test.want)
		})
	}
}

// TestRPMAMutations is TestRealMutations for the header of another project, which includes rdma-core's.
func TestRPMAMutations(t *testing.T) {
	include := filepath.Join(cacheDir, "librpma-1.3.0", "include")
	if err := hasHeaders(include, project.Named("librpma")); err != nil {
		t.Skipf("%v; run make headers", err)
	}
	include += string(filepath.ListSeparator) + realHeaders(t, "65.0")
	for _, test := range []struct {
		name   string
		mutate func(r *model.Release)
		want   string
	}{
		{"nothing", func(*model.Release) {}, ""},
		{"function type", func(r *model.Release) { r.Headers[0].FuncTypes[0].Params[2].Type = "long" },
			"rpma_log_function,,type: want void (*)(enum rpma_log_level, const char *, long, const char *, " +
				"const char *, ...)"},
		{"function type without an end", func(r *model.Release) { r.Headers[0].FuncTypes[0].Variadic = false },
			"rpma_log_function,,type"},
		{"member", func(r *model.Release) {
			findField(t, findRecord(t, r, "rpma_conn_private_data"), "len").Offset = model.Same(12)
		}, "rpma_conn_private_data,len,offset: want 12, found 8"},
		{"error number", func(r *model.Release) { *findMacro(t, r, "RPMA_E_AGAIN").Value = "-100008" },
			"-,RPMA_E_AGAIN,value: want -100008, found -100007"},
		{"enumerator", func(r *model.Release) { findEnum(t, r, "rpma_conn_event").Enumerators[0].Value = "-2" },
			"rpma_conn_event,RPMA_CONN_UNDEFINED,value: want -2, found -1"},
		{"prototype", func(r *model.Release) { findFunc(t, r, "rpma_cq_get_wc").Params[2].Type = "struct ibv_qp *" },
			"rpma_cq_get_wc,,prototype"},
	} {
		t.Run(test.name, func(t *testing.T) {
			mutant := recordedModel(t, "1.3.0")
			test.mutate(mutant)
			r, err := CWitness(context.Background(), hostCompiler(t), include, mutant, runtime.GOARCH)
			require.NoError(t, err)
			if test.want == "" {
				assert.Empty(t, r.Mismatches)
				return
			}
			require.Len(t, r.Mismatches, 1)
			assert.Contains(t, r.Mismatches[0].String(), test.want)
		})
	}
}

// TestKernelMutations is TestRealMutations for the kernel's headers.
func TestKernelMutations(t *testing.T) {
	include := filepath.Join(cacheDir, "linux-7.2", "include")
	if err := hasHeaders(include, project.Named("linux")); err != nil {
		t.Skipf("%v; run make headers", err)
	}
	for _, test := range []struct {
		name   string
		mutate func(r *model.Release)
		want   string
	}{
		{"nothing", func(*model.Release) {}, ""},
		{"member after a nested answer", func(r *model.Release) {
			findField(t, findRecord(t, r, "ib_uverbs_ex_create_cq_resp"), "comp_mask").Offset = model.Same(12)
		}, "ib_uverbs_ex_create_cq_resp,comp_mask,offset: want 12, found 8"},
		{"size with a union of flexible arrays", func(r *model.Release) {
			findRecord(t, r, "rxe_dma_info").Size = model.Same(32)
		}, "rxe_dma_info,,size: want 32, found 24"},
		{"command", func(r *model.Release) { *findMacro(t, r, "RDMA_VERBS_IOCTL").Value = "3222805250" },
			"-,RDMA_VERBS_IOCTL,value: want 3222805250, found 3222805249"},
		{"attribute", func(r *model.Release) { findEnum(t, r, "rdma_nldev_attr").Enumerators[5].Value = "300" },
			"rdma_nldev_attr,RDMA_NLDEV_ATTR_CAP_FLAGS,value: want 300, found 4"},
		{"address", func(r *model.Release) {
			findRecord(t, r, "__kernel_sockaddr_storage").Size = model.Same(136)
		}, "__kernel_sockaddr_storage,,size: want 136, found 128"},
	} {
		t.Run(test.name, func(t *testing.T) {
			mutant := recordedModel(t, "7.2")
			test.mutate(mutant)
			r, err := CWitness(context.Background(), hostCompiler(t), include, mutant, runtime.GOARCH)
			require.NoError(t, err)
			if test.want == "" {
				assert.Empty(t, r.Mismatches)
				return
			}
			require.Len(t, r.Mismatches, 1)
			assert.Contains(t, r.Mismatches[0].String(), test.want)
		})
	}
}

// TestTargetMutations: a wrong fact about arm64 is reported for arm64 only.
func TestTargetMutations(t *testing.T) {
	include := realHeaders(t, "65.0")
	for _, target := range []string{"arm64", "amd64"} {
		t.Run(target, func(t *testing.T) {
			cc, err := completeCompiler(context.Background(), target)
			if errors.Is(err, ErrNoCompiler) {
				t.Skip(err)
			}
			require.NoError(t, err)
			mutant := recordedModel(t, "65.0")
			findField(t, findRecord(t, mutant, "ibv_qp"), "events_completed").Offset.Set("arm64", 136)
			r, err := CWitness(context.Background(), cc, include, restrict(mutant, rules.Packages[:1]), target)
			require.NoError(t, err)
			if target == "arm64" {
				assert.Equal(t, []string{"ibv_qp,events_completed,offset"}, items(r))
			} else {
				assert.Empty(t, items(r))
			}
		})
	}
}

func contains(r *Report, item Item) bool {
	for _, m := range r.Mismatches {
		if m.Item == item {
			return true
		}
	}
	return false
}

func TestSummarizeNamesMissing(t *testing.T) {
	primary, all, err := recordedReleases()
	require.NoError(t, err)
	s, err := Summarize(context.Background(), t.TempDir(), primary, all)
	require.NoError(t, err)
	assert.Len(t, s.Skipped, len(all)*len(all[0].Targets))
	assert.ErrorIs(t, s.Skipped[0].Why, ErrNoHeaders)
	var b strings.Builder
	assert.ErrorContains(t, s.Print(&b), "nothing could be checked")
	assert.Contains(t, b.String(), "not checked: rdma-core 65.0 amd64, rdma-core 65.0 arm64")
	assert.Contains(t, b.String(), "make headers")

	dir := realHeaders(t, "65.0")
	t.Setenv("PATH", t.TempDir())
	t.Setenv("CC", "")
	s, err = Summarize(context.Background(), filepath.Dir(filepath.Dir(dir)), primary, all)
	require.NoError(t, err)
	assert.Empty(t, s.Reports)
	assert.ErrorContains(t, s.Require([]string{"arm64"}, 1),
		"arm64 is required and was not checked: no C compiler for arm64")
	for _, skipped := range s.Skipped {
		assert.True(t, errors.Is(skipped.Why, ErrNoCompiler) || errors.Is(skipped.Why, ErrNoHeaders), "%v", skipped.Why)
	}
}
