// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/headers"
)

// recordedModel returns a copy of a recorded model that a test may change.
func recordedModel(t *testing.T, name string) *model.Release {
	t.Helper()
	_, all, err := recordedReleases()
	require.NoError(t, err)
	for _, r := range all {
		if r.Name == name {
			file := rules.FileOf(r)
			data, err := headers.Model(file)
			require.NoError(t, err)
			r, err := model.Decode(file, data)
			require.NoError(t, err)
			return r
		}
	}
	t.Fatalf("no recorded model of %s", name)
	return nil
}

func findRecord(t *testing.T, r *model.Release, tag string) *model.Record {
	t.Helper()
	for i := range r.Headers {
		for j := range r.Headers[i].Records {
			if rec := &r.Headers[i].Records[j]; rec.Tag == tag {
				return rec
			}
		}
	}
	t.Fatalf("no record %s in %s", tag, r.Name)
	return nil
}

func findField(t *testing.T, rec *model.Record, name string) *model.Field {
	t.Helper()
	for i := range rec.Fields {
		if rec.Fields[i].Name == name {
			return &rec.Fields[i]
		}
	}
	t.Fatalf("no field %s in %s", name, rec.Tag)
	return nil
}

func findFunc(t *testing.T, r *model.Release, name string) *model.Func {
	t.Helper()
	for i := range r.Headers {
		for j := range r.Headers[i].Funcs {
			if f := &r.Headers[i].Funcs[j]; f.Name == name {
				return f
			}
		}
	}
	t.Fatalf("no function %s in %s", name, r.Name)
	return nil
}

func findEnum(t *testing.T, r *model.Release, tag string) *model.Enum {
	t.Helper()
	for i := range r.Headers {
		for j := range r.Headers[i].Enums {
			if e := &r.Headers[i].Enums[j]; e.Tag == tag {
				return e
			}
		}
	}
	t.Fatalf("no enum %s in %s", tag, r.Name)
	return nil
}

func findMacro(t *testing.T, r *model.Release, name string) *model.Macro {
	t.Helper()
	for i := range r.Headers {
		for j := range r.Headers[i].Macros {
			if m := &r.Headers[i].Macros[j]; m.Name == name {
				return m
			}
		}
	}
	t.Fatalf("no macro %s in %s", name, r.Name)
	return nil
}

func dropFunc(r *model.Release, name string) {
	for i := range r.Headers {
		r.Headers[i].Funcs = slices.DeleteFunc(r.Headers[i].Funcs, func(f model.Func) bool { return f.Name == name })
	}
}

// append8 adds a member of eight bytes after all others.
func append8(rec *model.Record, name string) {
	rec.Fields = append(rec.Fields, model.Field{Name: name, Type: "uint64_t", Offset: rec.Size, Size: model.Same(8)})
	for target, n := range rec.Size.Only {
		rec.Size.Only[target] = n + 8
	}
	rec.Size.Default += 8
}

func compareWith(t *testing.T, theirs *model.Release) []Difference {
	t.Helper()
	primary, all, err := recordedReleases()
	require.NoError(t, err)
	return Compare(primary.Of("rdma-core")[0], theirs, all.Of("rdma-core"), "amd64")
}

// TestCompareBounds compares the recorded kernels. Enumerators that end an enumeration, such as RDMA_NLDEV_NUM_OPS, may
// differ; another value of the same enumerator is incompatible.
func TestCompareBounds(t *testing.T) {
	_, all, err := recordedReleases()
	require.NoError(t, err)
	kernels := all.Of("linux")
	incompatible := func(theirs *model.Release) (names []string) {
		for _, d := range Compare(recordedModel(t, "7.2"), theirs, kernels, "amd64") {
			if !d.Compatible && d.Kind == EnumeratorItem {
				names = append(names, d.Path)
			}
		}
		return names
	}
	theirs := recordedModel(t, "6.1")
	assert.Empty(t, incompatible(theirs))
	e := findEnum(t, theirs, "rdma_nldev_command").Enumerators
	e[len(e)-1].Value = "99" // no longer follows the last command
	assert.Equal(t, []string{"RDMA_NLDEV_NUM_OPS"}, incompatible(theirs))
}

func TestCompareRecordedReleases(t *testing.T) {
	primaries, all, err := recordedReleases()
	require.NoError(t, err)
	primary := primaries.Of("rdma-core")[0]
	all = all.Of("rdma-core")
	for _, ours := range all {
		for _, theirs := range all {
			for _, target := range []string{"amd64", "arm64"} { // the only layouts that differ
				differences := Compare(ours, theirs, all, target)
				if ours.Name == theirs.Name {
					assert.Empty(t, differences, "%s", ours.Name)
				}
				for _, d := range differences {
					assert.True(t, d.Compatible, "%s in Go, headers of %s, on %s: %s", ours.Name, theirs.Name, target,
						d)
					assert.NotEmpty(t, d.Since, "%s", d)
				}
				assert.Equal(t, theirs.Name, Identify(theirs, all, target, ""))
			}
		}
	}
	var lines []string
	for _, d := range Compare(primary, recordedModel(t, "44.0"), all, "arm64") {
		lines = append(lines, d.String())
	}
	for _, want := range []string{
		"record ibv_qp_ex: size is 360 in these headers, 368 in Go: grown at its end; since 56.1",
		"field ibv_qp_ex.wr_flush: not in these headers: these headers are older; since 56.1",
		"record verbs_context: size is 656 in these headers, 704 in Go: grown at its front; offsets are counted from its end; since 65.0",
		"field ib_uverbs_query_port_resp_ex.reserved: type is __u8[6] in these headers, __u8[2] in Go: as in a recorded release; since 56.1",
		// an arm of its union
		"record mlx5dv_flow_action_attr: size is 16 in these headers, 24 in Go: grown at its end; but arrays of it " +
			"have another stride: pass no more than one element in mlx5dv_create_flow.actions_attr; since 65.0",
		"field efadv_qp_init_attr.reserved: type is uint8_t[4] in these headers, uint8_t in Go: as in a recorded release; since 65.0",
		"field efadv_device_attr.reserved: only in these headers: of another release than the Go package; since " +
			"33.2 or earlier",
		"macro mlx5dv_create_flow: declaration is function in these headers, macro in Go: one of them hides the function behind a macro; since 65.0",
		"function ibv_reg_mr_ex: not in these headers: these headers are older; since 65.0",
		"constant IBV_DEVICE_CC_DMA_BOUNCE: not in these headers: these headers are older; since 65.0",
	} {
		assert.Contains(t, lines, want)
	}
}

// TestCompareFindsMutations: a change after which a Go program would access wrong memory or use a wrong value is
// incompatible.
func TestCompareFindsMutations(t *testing.T) {
	if os.Getenv("GOVERBS_LONG") == "" {
		t.Skip("slow; set GOVERBS_LONG=1, or run make test")
	}
	tests := []struct {
		name   string
		mutate func(r *model.Release)
		want   []string // items that are incompatible
	}{
		{"offset", func(r *model.Release) {
			findField(t, findRecord(t, r, "ibv_wc"),
				"byte_len").Offset = model.Same(24)
		}, []string{"ibv_wc,byte_len,offset"}},
		{"offset in an arm", func(r *model.Release) {
			findField(t, findField(t, findField(t, findRecord(t, r, "ibv_send_wr"), "wr").Record, "rdma").Record,
				"rkey").Offset = model.Same(12)
		}, []string{"ibv_send_wr,wr.rdma.rkey,offset"}},
		{"alignment", func(r *model.Release) { findRecord(t, r, "ibv_gid").Align = model.Same(16) },
			[]string{"ibv_gid,,alignment"}},
		{"kind", func(r *model.Release) { findRecord(t, r, "ibv_gid").Kind = model.Struct },
			[]string{"ibv_gid,,declaration", "ibv_gid,,declaration"}},
		{"type of a member",
			func(r *model.Release) { findField(t, findRecord(t, r, "ibv_sge"), "length").Type = "__be32" },
			[]string{"ibv_sge,length,type"}},
		{"type of a slot",
			func(r *model.Release) { findField(t, findRecord(t, r, "ibv_qp_ex"), "wr_send").Func.Result = "int" },
			[]string{"ibv_qp_ex,wr_send,type"}},
		{"size of a member",
			func(r *model.Release) { findField(t, findRecord(t, r, "ibv_sge"), "lkey").Size = model.Same(2) },
			[]string{"ibv_sge,lkey,size"}},
		{"growth that nothing allows", func(r *model.Release) { append8(findRecord(t, r, "ibv_wc"), "timestamp") },
			[]string{"ibv_wc,,size"}},
		{"growth without a member", func(r *model.Release) { findRecord(t, r, "ibv_sge").Size = model.Same(24) },
			[]string{"ibv_sge,,size"}},
		{"growth in the middle", func(r *model.Release) {
			rec := findRecord(t, r, "ibv_sge")
			rec.Size = model.Same(24)
			rec.Fields[2].Offset = model.Same(20)
		}, []string{"ibv_sge,,size", "ibv_sge,lkey,offset"}},
		{"lost member", func(r *model.Release) {
			rec := findRecord(t, r, "ibv_ah_attr")
			rec.Fields = rec.Fields[:len(rec.Fields)-1]
		}, []string{"ibv_ah_attr,port_num,declaration"}},
		{"renamed member", func(r *model.Release) { findField(t, findRecord(t, r, "ibv_sge"), "lkey").Name = "key" },
			[]string{"ibv_sge,lkey,declaration"}},
		{"lost function", func(r *model.Release) { dropFunc(r, "ibv_open_device") },
			[]string{"ibv_open_device,,declaration"}},
		{"result", func(r *model.Release) { findFunc(t, r, "ibv_close_device").Result = "long" },
			[]string{"ibv_close_device,,prototype"}},
		{"parameter", func(r *model.Release) { findFunc(t, r, "ibv_modify_qp").Params[2].Type = "unsigned int" },
			[]string{"ibv_modify_qp,,prototype"}},
		{"symbol that became inline", func(r *model.Release) {
			findFunc(t, r, "ibv_close_device").Inline = &model.Inline{Kind: model.Compute}
		}, []string{"ibv_close_device,,linkage"}},
		{"member of a packed structure", func(r *model.Release) {
			findField(t, findRecord(t, r, "mlx5_wqe_ctrl_seg"), "imm").Offset = model.Same(16)
		}, []string{"mlx5_wqe_ctrl_seg,imm,offset"}},
		{"growth of a packed structure",
			func(r *model.Release) { findRecord(t, r, "mlx5_wqe_ctrl_seg").Size = model.Same(20) },
			[]string{"mlx5_wqe_ctrl_seg,,size"}},
		{"value of the connection manager",
			func(r *model.Release) { findEnum(t, r, "rdma_cm_event_type").Enumerators[9].Value = "10" },
			[]string{"rdma_cm_event_type,RDMA_CM_EVENT_ESTABLISHED,value"}},
		{"lost function of a provider", func(r *model.Release) { dropFunc(r, "efadv_query_device") },
			[]string{"efadv_query_device,,declaration"}},
		{"member of the C library", func(r *model.Release) {
			findField(t, findRecord(t, r, "sockaddr_in"), "sin_port").Offset = model.Same(4)
		}, []string{"sockaddr_in,sin_port,offset"}},
		{"enumerator", func(r *model.Release) { findEnum(t, r, "ibv_wr_opcode").Enumerators[2].Value = "3" },
			[]string{"ibv_wr_opcode,IBV_WR_SEND,value"}},
		{"sign of an enumerator",
			func(r *model.Release) { findEnum(t, r, "ibv_node_type").Enumerators[0].Value = "18446744073709551615" },
			[]string{"ibv_node_type,IBV_NODE_UNKNOWN,value"}},
		{"size of an enum", func(r *model.Release) { findEnum(t, r, "ibv_mtu").Size = 8 }, []string{"ibv_mtu,,size"}},
		{"lost enumerator", func(r *model.Release) {
			e := findEnum(t, r, "ibv_mtu")
			e.Enumerators = e.Enumerators[1:]
		}, []string{"ibv_mtu,IBV_MTU_256,declaration"}},
		{"constant", func(r *model.Release) { *findMacro(t, r, "IBV_DEVICE_RAW_SCATTER_FCS").Value = "1" },
			[]string{"-,IBV_DEVICE_RAW_SCATTER_FCS,value"}},
		{"pointer constant", func(r *model.Release) { *findMacro(t, r, "IBV_ALLOCATOR_USE_DEFAULT").Value = "-2" },
			[]string{"-,IBV_ALLOCATOR_USE_DEFAULT,value"}},
		{"alias", func(r *model.Release) {
			findMacro(t, r, "ibv_flow_action_esp").Target = "ib_uverbs_flow_action_esp_encap"
		}, []string{"-,ibv_flow_action_esp,target"}},
		{"alias that became a function", func(r *model.Release) {
			*findMacro(t, r, "ibv_flow_action_esp") = model.Macro{Name: "ibv_flow_action_esp", Kind: model.FuncLike,
				Params: []string{"x"}}
		}, []string{"-,ibv_flow_action_esp,kind"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			theirs := recordedModel(t, "65.0")
			test.mutate(theirs)
			var wrong []string
			for _, d := range compareWith(t, theirs) {
				if !d.Compatible {
					wrong = append(wrong, d.Item.String())
				}
			}
			assert.Subset(t, test.want, wrong)
			assert.NotEmpty(t, wrong)
		})
	}
}

// TestCompareNewerRelease: a newer release may add declarations, and may enlarge records that have grown before or that
// have a comp_mask.
func TestCompareNewerRelease(t *testing.T) {
	theirs := recordedModel(t, "65.0")
	theirs.Name = ""
	h := &theirs.Headers[0]
	h.Funcs = append(h.Funcs, model.Func{Name: "ibv_new", Proto: model.Proto{Result: "int"}})
	h.Macros = append(h.Macros, model.Macro{Name: "IBV_NEW", Kind: model.FuncLike, Params: []string{}})
	h.Records = append(h.Records, model.Record{Kind: model.Struct, Tag: "ibv_new", Size: model.Same(8),
		Align: model.Same(8)})
	e := findEnum(t, theirs, "ibv_wr_opcode")
	e.Enumerators = append(e.Enumerators, model.Enumerator{Name: "IBV_WR_NEW", Value: "99"})
	append8(findRecord(t, theirs, "ibv_qp_ex"), "wr_new")               // has grown before
	append8(findRecord(t, theirs, "ibv_qp_init_attr_ex"), "new_option") // has a comp_mask
	front := findRecord(t, theirs, "verbs_context")                     // has grown at its front before
	for i := range front.Fields {
		front.Fields[i].Offset = model.Same(front.Fields[i].Offset.Default + 8)
	}
	front.Size = model.Same(front.Size.Default + 8)
	front.Fields = append([]model.Field{{Name: "new_op", Type: "void *", Size: model.Same(8)}}, front.Fields...)
	esp := findRecord(t, theirs, "ib_uverbs_query_port_resp_ex") // reserved bytes are now used
	for i := range esp.Fields {
		if f := &esp.Fields[i]; f.Name == "reserved" {
			f.Type, f.Size = "__u8[1]", model.Same(1)
		}
	}
	esp.Fields = append(esp.Fields, model.Field{Name: "fresh", Type: "__u8", Offset: model.Same(43),
		Size: model.Same(1)})

	differences := compareWith(t, theirs)
	var lines []string
	for _, d := range differences {
		assert.True(t, d.Compatible, "%s", d)
		assert.Empty(t, d.Since, "%s", d)
		lines = append(lines, d.String())
	}
	assert.ElementsMatch(t, []string{
		"function ibv_new: only in these headers: these headers are newer",
		"macro IBV_NEW: only in these headers: these headers are newer",
		"record ibv_new: only in these headers: these headers are newer",
		"enumerator IBV_WR_NEW: only in these headers: these headers are newer",
		"record ibv_qp_ex: size is 368 in these headers, 360 in Go: grown at its end",
		"field ibv_qp_ex.wr_new: only in these headers: these headers are newer",
		"record ibv_qp_init_attr_ex: size is 144 in these headers, 136 in Go: grown at its end",
		"field ibv_qp_init_attr_ex.new_option: only in these headers: these headers are newer",
		"record verbs_context: size is 704 in these headers, 696 in Go: grown at its front; offsets are counted from its end",
		"field verbs_context.new_op: only in these headers: these headers are newer",
		"field ib_uverbs_query_port_resp_ex.reserved: type is __u8[1] in these headers, __u8[2] in Go: reserved " +
			"bytes are now used",
		"field ib_uverbs_query_port_resp_ex.fresh: only in these headers: these headers are newer",
	}, lines)
	_, all, err := recordedReleases()
	require.NoError(t, err)
	assert.Equal(t, "newer than 65.0", place(differences, all.Of("rdma-core")))
	assert.Empty(t, Identify(theirs, all, "amd64", ""))
}

// TestCompareOlderRelease: a declaration of the oldest recorded release may be missing only from headers known to be
// older.
func TestCompareOlderRelease(t *testing.T) {
	theirs := recordedModel(t, "44.0")
	dropFunc(theirs, "ibv_open_device")
	wrong := func() (all []Difference) {
		for _, d := range compareWith(t, theirs) {
			if !d.Compatible {
				all = append(all, d)
			}
		}
		return all
	}
	theirs.Name = ""
	require.Len(t, wrong(), 1)
	assert.Equal(t,
		"function ibv_open_device: not in these headers: removed from these headers, unless they are older "+
			"than every recorded release; state it with -release; since 33.2 or earlier", wrong()[0].String())
	theirs.Name = "44.0"
	assert.Len(t, wrong(), 1)
	theirs.Name = "28.0"
	assert.Len(t, wrong(), 1, "they have later declarations than 33.2, whatever release is stated")
	theirs = recordedModel(t, "33.2")
	dropFunc(theirs, "ibv_open_device")
	assert.Len(t, wrong(), 1)
	theirs.Name = "28.0"
	assert.Empty(t, wrong())

	between := recordedModel(t, "65.0") // has some declarations that are new in 65.0
	dropFunc(between, "ibv_reg_mr_ex")
	between.Name = "65.0"
	assert.False(t, compareWith(t, between)[0].Compatible)
	for _, name := range []string{"", "60.0"} {
		between.Name = name
		assert.True(t, compareWith(t, between)[0].Compatible)
	}
	_, all, err := recordedReleases()
	require.NoError(t, err)
	assert.Equal(t, "between 33.2 and 65.0", place(compareWith(t, between), all.Of("rdma-core")))
}

func TestCompareHarmless(t *testing.T) {
	theirs := recordedModel(t, "65.0")
	findFunc(t, theirs, "ibv_post_send").Inline = nil
	findFunc(t, theirs, "ibv_post_send").Params[0].Name = "queue_pair"
	e := findEnum(t, theirs, "ibv_mtu")
	first := e.Enumerators[0]
	e.Enumerators = e.Enumerators[1:]
	value := first.Value
	theirs.Headers[0].Macros = append(theirs.Headers[0].Macros,
		model.Macro{Name: first.Name, Kind: model.Constant, Value: &value, Type: "int"})
	var lines []string
	for _, d := range compareWith(t, theirs) {
		assert.True(t, d.Compatible, "%s", d)
		lines = append(lines, d.String())
	}
	assert.Equal(t, []string{
		"enumerator IBV_MTU_256: enum is - in these headers, ibv_mtu in Go: declared elsewhere, with the same value",
		"function ibv_post_send: linkage is extern in these headers, inline in Go: now a symbol of the library",
	}, lines)
}

func TestCompareReleases(t *testing.T) {
	ordered := []string{"", "9.0", "33.2", "44.0", "44.0.1", "44.1", "100.0"}
	assert.True(t, slices.IsSortedFunc(ordered, compareReleases))
	assert.Zero(t, compareReleases("44", "44.0"))
}
