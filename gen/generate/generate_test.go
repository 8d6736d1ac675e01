// SPDX-License-Identifier: BSD-2-Clause

package generate

import (
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/emit"
	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/headers"
)

const (
	modelDir    = "../../headers/models"
	measuredDir = "../../headers/measured"
	ioctlDir    = "../../headers/ioctls"
)

var sources = Sources{modelDir, measuredDir, ioctlDir}

var primary = headers.Primary("rdma-core")

// primaries are the model files of the primary releases.
var primaries = func() (files []string) {
	for _, p := range project.All {
		files = append(files, p.File(headers.Primary(p.Name)))
	}
	return files
}()

// fromModels returns a result that all tests share and must not modify.
func fromModels(t *testing.T) *Result {
	t.Helper()
	res, err := once()
	require.NoError(t, err)
	return res
}

var once = sync.OnceValues(func() (*Result, error) { return FromModels(sources, primaries...) })

// headerCounts holds the numbers of declarations of a header, with untagged records and enums counted separately.
type headerCounts struct {
	structs, untaggedStructs, unions, untaggedUnions, enums, untaggedEnums, enumerators, constants, extern, inline,
	slots int
}

func countHeader(h *model.Header) headerCounts {
	var n headerCounts
	var fields func(r *model.Record)
	fields = func(r *model.Record) {
		for i := range r.Fields {
			f := &r.Fields[i]
			if f.Func != nil {
				n.slots++
			}
			if f.Record == nil {
				continue
			}
			if f.Record.Kind == model.Union {
				n.untaggedUnions++
			} else {
				n.untaggedStructs++
			}
			fields(f.Record)
		}
	}
	for i := range h.Records {
		switch h.Records[i].Kind {
		case model.Struct:
			n.structs++
		case model.Union:
			n.unions++
		}
		fields(&h.Records[i])
	}
	for _, e := range h.Enums {
		n.enumerators += len(e.Enumerators)
		if e.Tag == "" {
			n.untaggedEnums++
		} else {
			n.enums++
		}
	}
	for _, f := range h.Funcs {
		if f.Inline == nil {
			n.extern++
		} else {
			n.inline++
		}
	}
	for _, m := range h.Macros {
		if m.Kind == model.Constant {
			n.constants++
		}
	}
	return n
}

// counted returns the headers for which independent counts exist.
func counted(t *testing.T) []*model.Header {
	t.Helper()
	var all []*model.Header
	for _, name := range []string{"65.0", "librpma-1.3.0"} {
		r, err := ReadModel(filepath.Join(modelDir, name+".json"))
		require.NoError(t, err)
		for i := range r.Headers {
			all = append(all, &r.Headers[i])
		}
	}
	return all
}

// TestHeaderCounts compares the numbers of declarations in every header of rdma-core 65.0 and librpma 1.3.0 with
// independent counts.
func TestHeaderCounts(t *testing.T) {
	want := map[string]headerCounts{
		"infiniband/verbs.h":    {107, 11, 1, 7, 70, 5, 446, 9, 87, 97, 122},
		"infiniband/tm_types.h": {structs: 2, enums: 1, enumerators: 4},
		"rdma/rdma_cma.h": {structs: 10, untaggedUnions: 4, enums: 4, untaggedEnums: 4, enumerators: 39,
			constants: 12, extern: 41, inline: 2},
		"rdma/rdma_verbs.h":   {extern: 3, inline: 16},
		"rdma/rsocket.h":      {untaggedEnums: 1, enumerators: 5, constants: 1, extern: 30},
		"infiniband/mlx5dv.h": {86, 14, 1, 8, 59, 22, 277, 5, 141, 30, 14},
		"infiniband/efadv.h": {structs: 13, untaggedStructs: 2, enums: 1, untaggedEnums: 11, enumerators: 24,
			extern: 13, inline: 3, slots: 3},
		"infiniband/mlx4dv.h": {structs: 21, untaggedStructs: 13, untaggedUnions: 3, enums: 6, untaggedEnums: 11,
			enumerators: 70, constants: 2, extern: 4, inline: 6, slots: 2},
		"infiniband/hnsdv.h": {structs: 2, enums: 3, enumerators: 6, extern: 3},
		"infiniband/manadv.h": {structs: 6, untaggedStructs: 4, enums: 2, untaggedEnums: 1, enumerators: 6, extern: 3,
			slots: 2},
		"infiniband/ionic_dv.h": {extern: 6},
		"librpma.h":             {structs: 1, enums: 5, enumerators: 20, constants: 24, extern: 84},
	}
	for _, h := range counted(t) {
		if n, ok := want[h.Name]; ok {
			assert.Equal(t, n, countHeader(h), h.Name)
			delete(want, h.Name)
		}
	}
	assert.Empty(t, want, "headers that the model lacks")
	for _, plan := range fromModels(t).Plans {
		for _, e := range plan.Skipped {
			assert.Regexp(t, "^macro ", e.C, "only macros are excepted; every function of every header is in the table")
		}
	}
}

// TestInlineKinds checks how the inline functions of verbs.h dispatch, and that none is missing.
func TestInlineKinds(t *testing.T) {
	res := fromModels(t)
	verbs := counted(t)[0]
	require.Equal(t, "infiniband/verbs.h", verbs.Name)
	kinds := map[model.InlineKind]int{}
	absent := map[model.Errors]int{}
	for _, f := range verbs.Funcs {
		if f.Inline != nil {
			kinds[f.Inline.Kind]++
			if f.Inline.Kind == model.ExtendedOp {
				assert.Equal(t, "EOPNOTSUPP", f.Inline.Absent, f.Name)
				absent[f.Inline.Errors]++
			}
		}
	}
	assert.Equal(t, map[model.InlineKind]int{
		model.Slot: 44, model.ContextOp: 6, model.ExtendedOp: 12 + 16, model.Logic: 6 +
			5, model.Call: 3, model.Compute: 5,
	}, kinds)
	assert.Equal(t, map[model.Errors]int{model.NullErrno: 12, model.ReturnsErrno: 16}, absent)
	for _, c := range res.Coverage {
		for kind, n := range c.By {
			assert.Empty(t, n.Missing, "%s %s", c.Header, kind)
			assert.Equal(t, n.Total, n.Emitted+n.Excepted, "%s %s", c.Header, kind)
		}
	}
}

// TestMissingIsAnError checks that a declaration that is missing from the printed source is an error, even if the plan
// contains it.
func TestMissingIsAnError(t *testing.T) {
	res := fromModels(t)
	for name, cut := range map[string][3]string{
		"struct: struct ibv_sge":             {"ibv/struct.go", "type SGE struct", "type Sxe struct"},
		"enumerator: IBV_WR_SEND":            {"ibv/enum.go", "\tWR_SEND ", "\tWR_SXND "},
		"slot: ibv_qp_ex.wr_start":           {"ibv/struct.go", "\tWRStart ", "\tWRSxart "},
		"inline function: ibv_post_send":     {"ibv/func.go", `"ibv_post_send"`, `"ibv_post_sxnd"`},
		"struct: ibv_send_wr.imm_data":       {"ibv/struct.go", "(p *SendWR) ImmData(", "(p *SendWR) ImmDxta("},
		"macro: macro IB_GRH_FLOWLABEL_MASK": {"ibv/const.go", "\tIB_GRH_FLOWLABEL_MASK ", "\tIB_GRH_FLOWLABEL_MXSK "},
	} {
		text := string(res.Files[cut[0]])
		require.Contains(t, text, cut[1])
		broken := *res
		broken.Files = maps.Clone(res.Files)
		broken.Files[cut[0]] = []byte(strings.Replace(text, cut[1], cut[2], 1))
		_, err := cover(&broken)
		assert.ErrorContains(t, err, name)
	}
}

// TestReservedNames checks that every exported name of the package comes from a header or is reserved, so that headers
// cannot declare the generator's own names.
func TestReservedNames(t *testing.T) {
	for _, name := range []string{"Functions", "Validity", "Ptr", "BE32"} {
		_, err := fromC(map[string]string{"in.h": "struct t_x { int a; };\n",
			"exceptions.txt": "t_x | name | " + name + " | taken\n"})
		assert.ErrorContains(t, err, "its Go name "+name+" is taken by the generator's own "+name)
	}
	res := fromModels(t)
	src, err := readSource(res.Files, res.Plans[0])
	require.NoError(t, err)
	fromHeaders := map[string]bool{}
	for _, name := range src.goOf {
		fromHeaders[name] = true
	}
	for _, e := range res.Plans[0].Enums { // including those of other sizes
		fromHeaders[e.Go] = true
	}
	for name := range src.idents {
		if token.IsExported(name) && !fromHeaders[name] {
			_, err := fromC(map[string]string{"in.h": "struct t_x { int a; };\n",
				"exceptions.txt": "t_x | name | " + name + " | taken\n"})
			assert.ErrorContains(t, err, "is taken by the generator's own", "reserve %s in gen/rules", name)
		}
	}
}

// TestReproducible checks that the same models give the same bytes, and that generated/ is up to date.
func TestReproducible(t *testing.T) {
	a := fromModels(t)
	b, err := FromModels(sources, primaries...)
	require.NoError(t, err)
	assert.Equal(t, a.Files, b.Files)
	names, err := Differs("../../generated", a.Files)
	require.NoError(t, err)
	assert.Empty(t, names, "run make generate")
}

func TestModelsRejected(t *testing.T) {
	dir := t.TempDir()
	_, err := FromModels(Sources{dir, measuredDir, ioctlDir}, primaries...)
	assert.ErrorContains(t, err, primary+".json: no model of the primary release")
	text, err := os.ReadFile(filepath.Join(modelDir, "44.0.json"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, primary+".json"), text, 0o644))
	_, err = FromModels(Sources{dir, measuredDir, ioctlDir}, primaries...)
	assert.ErrorContains(t, err, "model of rdma-core 44.0; rename it to 44.0.json")
}

// TestIoctlsRejected checks that schemas with unknown methods and attributes, and missing schemas, are errors.
func TestIoctlsRejected(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join(ioctlDir, "7.csv"))
	require.NoError(t, err)
	for _, c := range []struct{ old, new, want string }{
		{"CQ_CREATE", "CQ_INVENT", "headers/ioctls/7.csv: no enumeration of the attributes of ib_uverbs UVERBS_METHOD_CQ_INVENT"},
		{"PD_DESTROY,0,0,", "PD_DESTROY,0,5,", "UVERBS_METHOD_PD_DESTROY: enum uverbs_attrs_pd_destroy_ids has no constant " +
			"for attribute 5"},
		{"handle,new,7,", "handle,new,77,", "unknown type of object 77"},
		{"REG_MR,", "MR_DESTROY,", "gen/rules/ioctl.go: stale row ib_uverbs UVERBS_METHOD_REG_MR: no kernel in headers/ioctls " +
			"has it"},
	} {
		changed := strings.ReplaceAll(string(text), c.old, c.new)
		if c.old == "REG_MR," {
			changed = regexp.MustCompile("(?m)^.*UVERBS_METHOD_REG_MR,.*\n").ReplaceAllString(string(text), "")
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, "7.csv"), []byte(changed), 0o644))
		_, err = FromModels(Sources{modelDir, measuredDir, dir}, primaries...)
		assert.ErrorContains(t, err, c.want)
	}
	_, err = FromModels(Sources{modelDir, measuredDir, filepath.Join(dir, "nowhere")}, primaries...)
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// TestMeasuredRejected checks that an error for an invalid file in headers/measured contains the file name.
func TestMeasuredRejected(t *testing.T) {
	_, err := FromModels(Sources{modelDir, filepath.Join(t.TempDir(), "nowhere"), ioctlDir}, primaries...)
	assert.ErrorIs(t, err, os.ErrNotExist)
	dir := t.TempDir()
	_, err = FromModels(Sources{modelDir, dir, ioctlDir}, primaries...)
	assert.ErrorContains(t, err, "rxe 6.1 was not measured", "a row of gen/rules/measured.txt is stale")
	for name, text := range map[string]string{"rxe-6.1-post_send.csv": "qp_type\n", "notes.txt": ""} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	_, err = FromModels(Sources{modelDir, dir, ioctlDir}, primaries...)
	assert.ErrorContains(t, err, dir+": notes.txt: want a name PROVIDER-KERNEL-TABLE.csv")
	assert.ErrorContains(t, err, "\nrxe-6.1-post_send.csv: the first line must name the measured system")
}

// TestCheckPinned checks that a missing or extra model, which would change "since", is an error.
func TestCheckPinned(t *testing.T) {
	lock, err := fetch.ParseLock("headers.lock", headers.Lock())
	require.NoError(t, err)
	var all []string
	for _, rel := range lock.Releases {
		all = append(all, rel.File())
	}
	assert.NoError(t, CheckPinned(modelDir, all))
	assert.ErrorContains(t, CheckPinned(modelDir, append(all, "999.0")),
		"no model of release 999.0, which headers.lock pins")
	assert.ErrorContains(t, CheckPinned(modelDir, all[1:]),
		"model of rdma-core "+all[0]+", which headers.lock does not pin")
}

// TestRepeatedEnumerator checks that a name that occurs twice in an enum is rejected like any other collision.
func TestRepeatedEnumerator(t *testing.T) {
	recorded, err := ReadModels(modelDir)
	require.NoError(t, err)
	r := recorded.Find(primary)[0]
	e := r.Headers[0].Enums[0].Enumerators
	e[1].Name = e[0].Name
	x, err := rules.DefaultExceptions()
	require.NoError(t, err)
	_, err = FromInputs([]rules.Input{{Release: r, Path: "m.json", Recorded: recorded}}, rules.Packages, x)
	assert.ErrorContains(t, err, "its Go name GID_TYPE_IB is taken by IBV_GID_TYPE_IB")
}

func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "generated")
	files := emit.Files{"ibv/a.go": []byte("package ibv\n"), "ibv/b.go": []byte("package ibv\n")}
	changed, err := Write(dir, files)
	require.NoError(t, err)
	assert.True(t, changed)
	before, err := os.Stat(filepath.Join(dir, "ibv/a.go"))
	require.NoError(t, err)

	changed, err = Write(dir, files)
	require.NoError(t, err)
	assert.False(t, changed, "nothing to do")
	after, err := os.Stat(filepath.Join(dir, "ibv/a.go"))
	require.NoError(t, err)
	assert.Equal(t, before.ModTime(), after.ModTime())

	require.NoError(t, os.WriteFile(filepath.Join(dir, "stray.go"), nil, 0o644))
	delete(files, "ibv/b.go")
	files["ibv/a.go"] = []byte("package ibv // new\n")
	names, err := Differs(dir, files)
	require.NoError(t, err)
	assert.Equal(t, []string{"ibv/a.go (differs)", "ibv/b.go (not generated)", "stray.go (not generated)"}, names)
	_, err = Write(dir, files)
	require.NoError(t, err)
	names, err = Differs(dir, files)
	require.NoError(t, err)
	assert.Empty(t, names)
	rest, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	assert.Len(t, rest, 1, "no temporary directory is left")
}

// TestWriteIsAtomic checks that a failed write keeps the previous files, and that the next write repairs an interrupted
// swap.
func TestWriteIsAtomic(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "generated")
	good := emit.Files{"ibv/a.go": []byte("package ibv\n")}
	_, err := Write(dir, good)
	require.NoError(t, err)

	// a name that is both a file and a directory cannot be written
	_, err = Write(dir, emit.Files{"ibv/a.go": []byte("new\n"), "ibv/a.go/b.go": []byte("new\n")})
	require.Error(t, err)
	names, err := Differs(dir, good)
	require.NoError(t, err)
	assert.Empty(t, names)

	require.NoError(t, os.Rename(dir, dir+".old")) // interrupted between the two renames
	changed, err := Write(dir, good)
	require.NoError(t, err)
	assert.False(t, changed)
	rest, err := os.ReadDir(parent)
	require.NoError(t, err)
	assert.Len(t, rest, 1)
}

// TestWriteRollsBack checks that the previous files are restored if the second rename fails.
func TestWriteRollsBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "generated")
	old := emit.Files{"ibv/a.go": []byte("package ibv\n")}
	_, err := Write(dir, old)
	require.NoError(t, err)
	calls := 0
	defer func() { rename = os.Rename }()
	rename = func(from, to string) error {
		if calls++; calls == 2 {
			return os.ErrPermission
		}
		return os.Rename(from, to)
	}
	_, err = Write(dir, emit.Files{"ibv/a.go": []byte("package ibv // new\n")})
	assert.ErrorIs(t, err, os.ErrPermission)
	names, err := Differs(dir, old)
	require.NoError(t, err)
	assert.Empty(t, names)
}

// TestUnsupportedTarget checks that compiling for a 64-bit Linux target without recorded layouts fails with one
// explanatory error.
func TestUnsupportedTarget(t *testing.T) {
	res, err := fromC(map[string]string{"in.h": "struct t_a { int a; };\n"})
	require.NoError(t, err)
	dir := t.TempDir()
	for name, text := range res.Files {
		if base, ok := strings.CutPrefix(name, "golden/"); ok {
			require.NoError(t, os.WriteFile(filepath.Join(dir, base), text, 0o644))
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module golden\n\ngo 1.26\n"), 0o644))
	out, err := goBuild(dir, "riscv64") // not in goldenTargets
	require.Error(t, err)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 2, out)
	assert.Contains(t, lines[1], "this_64_bit_Linux_target_has_no_recorded_layouts_see_CONTRIBUTING_md")
	out, err = goBuild(dir, "amd64")
	assert.NoError(t, err, out)
	out, err = goBuild(dir, "386")
	assert.NoError(t, err, out)
}

// TestStaleExceptionStopsGeneration checks that generation fails if an exception row applies to no declaration.
func TestStaleExceptionStopsGeneration(t *testing.T) {
	recorded, err := ReadModels(modelDir)
	require.NoError(t, err)
	x, err := rules.ParseExceptions("x", "ibv_gone | skip | | was removed\n")
	require.NoError(t, err)
	r := &model.Release{Project: "rdma-core", Name: "1", Targets: []string{"amd64"}}
	_, err = FromInputs([]rules.Input{{Release: r, Recorded: recorded[:1]}}, nil, x)
	assert.ErrorContains(t, err, "stale exception")
}
