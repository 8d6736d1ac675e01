// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/generated/witness"
)

type goNested struct {
	Next *goNested
	wr   [2]uint64
}

func (n *goNested) WR() *[2]uint64 { return &n.wr }

// fakePackage imitates a generated package with one structure that has a union member behind an accessor.
func fakePackage() witness.Package {
	return witness.Package{
		Name: "fake", Release: "0.1",
		Records: []witness.Record{{
			C: "probe_nested", Kind: "struct", Go: "fake.Nested", Align: unsafe.Alignof(goNested{}),
			New:   func() any { return new(goNested) },
			Paths: []string{"next", "wr.rdma.rkey"},
			Members: func(r any) []any {
				p := r.(*goNested)
				return []any{&p.Next, &p.WR()[1]}
			},
		}},
		Constants: []witness.Constant{
			{Enum: "probe_sign", Name: "PROBE_UNKNOWN", Value: int32(-1)},
			{Enum: "-", Name: "PROBE_POINTER", Value: ^uintptr(0)},
		},
	}
}

func TestDump(t *testing.T) {
	have, err := Measure(fakePackage())
	require.NoError(t, err)
	var b strings.Builder
	require.NoError(t, have.Dump(&b))
	assert.Equal(t, "probe_nested,,0,24\nprobe_nested,next,0,8\nprobe_nested,wr.rdma.rkey,16,8\n"+
		"probe_sign,PROBE_UNKNOWN,-1\n-,PROBE_POINTER,18446744073709551615\n", b.String())
}

func TestMeasureRefuses(t *testing.T) {
	outside := new(goNested)
	first := func(p *witness.Package, member any) {
		p.Records[0].Paths, p.Records[0].Members = []string{"next"}, func(any) []any { return []any{member} }
	}
	for want, change := range map[string]func(p *witness.Package){
		"not a pointer":                func(p *witness.Package) { p.Records[0].New = func() any { return goNested{} } },
		"accessed through struct":      func(p *witness.Package) { first(p, goNested{}) },
		"lies outside":                 func(p *witness.Package) { first(p, outside) },
		"2 members have 1 names":       func(p *witness.Package) { p.Records[0].Paths = []string{"next"} },
		"string, not an integer":       func(p *witness.Package) { p.Constants[0].Value = "1" },
		"<nil>, not an integer":        func(p *witness.Package) { p.Constants[0].Value = nil },
		"accessed through invalid, no": func(p *witness.Package) { first(p, nil) },
	} {
		p := fakePackage()
		change(&p)
		_, err := Measure(p)
		assert.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "make generate")
	}
}

// TestCompareModel: the generated package equals its model, and every difference is found.
func TestCompareModel(t *testing.T) {
	primaries, _, err := recordedReleases()
	require.NoError(t, err)
	primary := primaries.Of("rdma-core")[0]
	of := map[string][]witness.Package{}
	for _, p := range packages(t) {
		of[p.Project()] = append(of[p.Project()], append(witness.All(), witness.UAPI)[slices.Index(namesOf(rules.Packages), p.Name)])
	}
	for name, all := range of {
		have, err := Measure(all...)
		require.NoError(t, err)
		assert.Empty(t, compareModel(have, primaries.Of(name)[0], runtime.GOARCH), name)
	}
	have, err := Measure(of["rdma-core"]...)
	require.NoError(t, err)
	assert.Empty(t, compareModel(have, primary, runtime.GOARCH))

	record := func(c string) *GoRecord {
		for i := range have.Records {
			if have.Records[i].C == c {
				return &have.Records[i]
			}
		}
		t.Fatalf("no %s", c)
		return nil
	}
	wc := record("ibv_wc")
	wc.Size += 8
	wc.Fields[0].Offset += 8
	wc.Fields = wc.Fields[:len(wc.Fields)-1]
	record("ibv_sge").Align = 16
	record("mlx5dv_flow_match_parameters").Trailing["MatchBuf"] += 8
	delete(record("mlx4_wqe_lso_seg").Trailing, "Header")
	record("ibv_gid").C = "ibv_no_such"
	for i, c := range have.Constants {
		switch c.Name {
		case "IBV_WR_SEND":
			have.Constants[i].Value = "7"
		case "IBV_NODE_UNKNOWN":
			have.Constants[i].Value = "18446744073709551615"
		case "IBV_ALLOCATOR_USE_DEFAULT":
			have.Constants[i].Value = "0"
		case "IBV_QPS_RTS":
			have.Constants[i].Enum = "-"
		}
	}
	var names []string
	for _, d := range compareModel(have, primary, runtime.GOARCH) {
		assert.False(t, d.Compatible)
		names = append(names, d.Item.String())
	}
	assert.ElementsMatch(t, []string{
		"ibv_wc,,size", "ibv_wc,wr_id,offset, size", "ibv_wc,dlid_path_bits,offset, size", "ibv_sge,,alignment",
		"ibv_no_such,,declaration", "ibv_gid,,declaration", "ibv_wr_opcode,IBV_WR_SEND,value",
		"ibv_node_type,IBV_NODE_UNKNOWN,value",
		"-,IBV_ALLOCATOR_USE_DEFAULT,value", "-,IBV_QPS_RTS,value",
		"mlx5dv_flow_match_parameters,match_buf,offset", "mlx4_wqe_lso_seg,header,offset, size",
	}, names)
}

// TestDumpOfIBV checks the documented output format.
func TestDumpOfIBV(t *testing.T) {
	have, err := Measure(witness.All()...)
	require.NoError(t, err)
	var b strings.Builder
	require.NoError(t, have.Dump(&b))
	for _, line := range []string{"ibv_send_wr,wr.rdma.rkey,48,4", "ibv_send_wr,,0,128", "ibv_send_wr,imm_data,36,4",
		"ibv_wr_opcode,IBV_WR_SEND,2", "-,IBV_DEVICE_RAW_SCATTER_FCS,17179869184"} {
		assert.Contains(t, b.String(), "\n"+line+"\n")
	}
}

func TestCompareModelUnknownConstant(t *testing.T) {
	g := &GoFacts{Constants: []GoConstant{{Enum: "-", Name: "NO_SUCH", Value: "1"}}}
	all := compareModel(g, &model.Release{Name: "0.1"}, "amd64")
	require.Len(t, all, 1)
	assert.Equal(t, "-,NO_SUCH,value", all[0].Item.String())
}
