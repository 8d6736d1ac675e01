// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/generate"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
)

func recorded(t *testing.T) (rules.Recorded, string) {
	t.Helper()
	all, err := generate.ReadModels("../../headers/models")
	require.NoError(t, err)
	rows, err := os.ReadFile("../rules/exceptions.txt")
	require.NoError(t, err)
	return all, string(rows)
}

// TestGoldenReports checks the reports of two real header bumps. It also checks for essential entries, which -update
// cannot remove.
func TestGoldenReports(t *testing.T) {
	all, rows := recorded(t)
	goAPI := func(r *model.Release) (API, []string, error) { return GoAPI(r, all, rows) }
	for _, c := range []struct {
		old, new string
		later    string // a header that only the new release has
		verdict  Verdict
		want     []Entry // the reason is compared unless it is ""
	}{
		{"44.0", "56.1", "infiniband/hnsdv.h", Additive, []Entry{
			{"infiniband/verbs.h", Record, "struct ibv_qp_ex", Resized, "352 (arm64: 360)", "360 (arm64: 368)",
				Additive, ""},
			{"infiniband/verbs.h", Slot, "ibv_qp_ex.wr_flush", Added, "",
				"void (*)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, size_t len, uint8_t type, " +
					"uint8_t level) at 352 (arm64: 360)", Additive, ""},
			{"infiniband/verbs.h", Record, "struct ibv_port_attr", Resized, "52", "56", Additive, ""},
			{"infiniband/verbs.h", Member, "ibv_port_attr.active_speed_ex", Added, "", "uint32_t at 52", Additive, ""},
			{"infiniband/verbs.h", Enumerator, "IBV_WR_FLUSH", Added, "", "14", Additive, ""},
			{"ibv_wr_post.3", Row, "wr_post: FLUSH", Added, "",
				"builder ibv_wr_flush, qp_types RC, RD, XRC_SEND, setters DATA, QP", Additive, ""},
			{"table wc_send", Cell, "wc_send: IBV_WR_FLUSH", Added, "", "yes; Opcode = IBV_WC_FLUSH", Additive, ""},
			{"package ibv", GoName, "WR_FLUSH", Added, "", "const WROpcode = 14", Additive, ""},
			{"package ibv", GoName, "QPEx.WRFlush", Added, "", "field FuncPtr", Additive, ""},
		}},
		{"56.1", "65.0", "infiniband/ionic_dv.h", Breaking, []Entry{
			{"infiniband/mlx5dv.h", Record, "struct mlx5dv_flow_action_attr", Resized, "16", "24", Breaking,
				"grown at its tail; mlx5dv_create_flow.actions_attr points to an array of num_actions elements of " +
					"it: the stride changes"},
			{"infiniband/verbs.h", Record, "struct verbs_context", Resized, "648 (arm64: 656)", "696 (arm64: 704)",
				Additive, ""},
			{"infiniband/verbs.h", Slot, "verbs_context.reg_mr_ex", Added, "",
				"struct ibv_mr *(*)(struct ibv_pd *pd, struct ibv_mr_init_attr *mr_init_attr) at 24", Additive, ""},
			{"table cm_private_data", Cell, "cm_private_data: RDMA_CM_EVENT_ADDRINFO_RESOLVED, " +
				"RDMA_CM_EVENT_ADDRINFO_ERROR, RDMA_CM_EVENT_USER, RDMA_CM_EVENT_INTERNAL × connected, connected " +
				"AF_IB, datagram, datagram AF_IB, iWARP × caller, listener", Added, "", "no", Additive, ""},
			{"infiniband/efadv.h", Record, "struct efadv_cq_init_attr", Resized, "16", "56", Additive, ""},
			{"librdmacm.so.1", SymbolVersion, "RDMACM_1.4", Added, "", "", Additive, ""},
			{"librdmacm.so.1", Symbol, "rdma_resolve_addrinfo@@RDMACM_1.4", Added, "", "function", Additive, "new"},
			{"libibverbs.so.1", Symbol, "ibv_cmd_reg_mr_ex@@IBVERBS_PRIVATE_65", Added, "", "function", None, ""},
			{"libibverbs.so.1", Symbol, "ibv_wr_opcode_str@@IBVERBS_PRIVATE_34", Removed, "function", "", Breaking, ""},
		}},
	} {
		t.Run(c.old+" to "+c.new, func(t *testing.T) {
			r, err := Recorded(all, c.old, c.new, goAPI)
			require.NoError(t, err)
			assert.Equal(t, c.verdict, r.Verdict)
			assert.Equal(t, []string{c.old + " has no " + c.later}, r.Notes)
			for _, want := range c.want {
				i := slices.IndexFunc(r.Entries,
					func(e Entry) bool { return e.Name == want.Name && e.Change == want.Change })
				require.GreaterOrEqual(t, i, 0, "%s %s is not reported", want.Name, want.Change)
				got := r.Entries[i]
				assert.NotEmpty(t, got.Reason)
				if want.Reason == "" {
					got.Reason = ""
				}
				assert.Equal(t, want, got)
			}
			path := filepath.Join("testdata", c.old+"-"+c.new+".txt")
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(r.Text()), 0o644))
			}
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, string(text), r.Text(), "run go test ./gen/diff -update and read the difference")
		})
	}
	names, err := Recorded(all, "56.1", "65.0", nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"56.1 has no infiniband/ionic_dv.h", "Go identifiers are not compared"}, names.Notes)
	assert.False(t, slices.ContainsFunc(names.Entries, func(e Entry) bool { return e.Kind == GoName }))
	same, err := Recorded(all, "1.2.0", "librpma-1.3.0", goAPI)
	require.NoError(t, err)
	assert.Equal(t, "librpma 1.2.0 → 1.3.0: none (exit status 0)\n0 breaking, 0 additive, 0 without effect\n",
		same.Text(), "both have the same header and exports")
	_, err = Recorded(all, "1.3.0", "65.0", goAPI)
	assert.ErrorContains(t, err, "librpma 1.3.0 and rdma-core 65.0 are releases of different projects")
	_, err = Recorded(all, "44.0", "57.0", goAPI)
	assert.ErrorContains(t, err, "release 57.0 is not recorded (recorded: 33.2, 44.0, 56.1, 65.0, ")
}

// TestSameRelease checks that a release does not differ from itself.
func TestSameRelease(t *testing.T) {
	all, rows := recorded(t)
	j, err := DefaultJudgements()
	require.NoError(t, err)
	for _, c := range []struct {
		release, pkg string
		names        int
	}{{"56.1", "ibv", 500}, {"65.0", "ibv", 500}, {"1.2.0", "rpma", 50}, {"1.3.0", "rpma", 50}} {
		one := all.Find(c.release)[0]
		api, notes, err := GoAPI(one, all, rows)
		require.NoError(t, err)
		assert.Empty(t, notes)
		assert.Greater(t, len(api[c.pkg]), c.names)
		r := Compare(Planned(one, api), Planned(one, api), j)
		assert.Empty(t, r.Entries, one.Name)
		assert.Equal(t, None, r.Verdict)
	}
}

// TestNoStaleJudgement checks that every row has an effect on a recorded release.
func TestNoStaleJudgement(t *testing.T) {
	all, _ := recorded(t)
	j, err := DefaultJudgements()
	require.NoError(t, err)
	for i := range all {
		Compare(Generation{Release: all[i]}, Generation{Release: all[min(i+1, len(all)-1)]}, j)
	}
	assert.Empty(t, j.Unused())
}

// TestRoles checks which side allocates each structure, the library or the program, as derived from the headers. The
// expected values are from the man pages.
func TestRoles(t *testing.T) {
	all, _ := recorded(t)
	j, err := DefaultJudgements()
	require.NoError(t, err)
	u := uses(newIndex(all.Find("65.0")[0]), j)
	for _, returned := range []string{"ibv_qp", "ibv_cq_ex", "ibv_mr", "ibv_device", "rdma_cm_id", "mlx5dv_qp_ex"} {
		assert.NotEmpty(t, u["struct "+returned].returned, returned)
	}
	for _, given := range []string{"ibv_send_wr", "ibv_wc", "ibv_sge", "ibv_qp_attr", "ibv_port_attr", "rdma_addrinfo",
		"rdma_conn_param", "mlx5dv_flow_action_attr"} {
		assert.Empty(t, u["struct "+given].returned, given)
	}
	arrays, err := Arrays(all.Find("65.0")[0])
	require.NoError(t, err)
	array := func(tag string) []string { return arrays["struct "+tag] }
	assert.Subset(t, array("ibv_wc"), []string{"ibv_context_ops.poll_cq.wc"})
	assert.Subset(t, array("ibv_sge"),
		[]string{"ibv_send_wr.sg_list", "ibv_recv_wr.sg_list", "ibv_qp_ex.wr_set_sge_list.sg_list"})
	assert.Empty(t, array("ibv_gid_entry"), "_ibv_query_gid_table receives the size of an entry")
	assert.Empty(t, array("mlx5dv_flow_match_parameters"), "the adjacent count belongs to actions_attr")
	assert.Empty(t, array("ibv_qp_attr"))
}

// modelOnly returns a Generation without packages.
func modelOnly(r *model.Release) Generation { return Generation{Release: r, Go: API{}} }

func TestTogether(t *testing.T) {
	assert.Equal(t, []string{"A, B × x, y", "C × y"},
		together([][]string{{"A", "x"}, {"A", "y"}, {"B", "x"}, {"B", "y"}, {"C", "y"}}))
	assert.Equal(t, []string{"A × x", "B × y"}, together([][]string{{"A", "x"}, {"B", "y"}}))
}

func TestJudgementsRejected(t *testing.T) {
	for text, want := range map[string]string{
		"count | num_*":                        "j:1: 2 columns",
		"counts | num_* | | why":               `j:1: unknown action "counts"`,
		"count | num_* | | ":                   "needs a subject and a reason",
		"count | num_* | 3 | why":              "an argument only if the action takes one",
		"verdict | revalued X | | why":         "an argument only if the action takes one",
		"verdict | revalued X | fine | why":    `"fine" is not a verdict`,
		"count | [ | | why":                    "syntax error in pattern",
		"size | a | | why\n\nsize | a | | why": "j:3: duplicate size a, first at j:1",
	} {
		_, err := ParseJudgements("j", text)
		assert.ErrorContains(t, err, want, text)
	}
	j, err := ParseJudgements("j", "returned | struct t_gone | | why")
	require.NoError(t, err)
	empty := &model.Release{Name: "1", Targets: []string{"amd64"}}
	Compare(Generation{Release: empty}, Generation{Release: empty}, j)
	assert.Equal(t, []string{"j:1: stale row: returned struct t_gone makes no difference; delete it"}, j.Unused())
}

func TestReport(t *testing.T) {
	assert.Equal(t, []int{0, 3, 4}, []int{None.ExitStatus(), Additive.ExitStatus(), Breaking.ExitStatus()})
	r := &Report{Project: "rdma-core", Old: "1", New: "2", Entries: []Entry{
		{"b.h", Function, "f", Added, "", "int f(void)", Additive, "new"},
		{"b.h", Record, "struct r", Resized, "8", "4", Breaking, "shrunk"},
		{"a.h", Constant, "C", Retyped, "int", "unsigned int", None, "the same number"},
	}, Notes: []string{"a note"}}
	r.finish([]string{"a.h", "b.h"})
	assert.Equal(t, `rdma-core 1 → 2: breaking (exit status 4)
1 breaking, 1 additive, 1 without effect
note: a note

Breaking
  b.h  struct r resized  shrunk

a.h
  constants
    C  retyped  int → unsigned int  the same number

b.h
  structures and unions
  ! struct r  resized  8 → 4  shrunk
  functions
  + f  added  int f(void)
`, r.Text())
	long := strings.Repeat("x", widest)
	wide := &Report{Project: "rdma-core", Old: "1", New: "2", Entries: []Entry{
		{"b.h", Cell, "short", Added, "", "yes", Additive, "new"},
		{"b.h", Cell, long + "y", Added, "", "no", Breaking, "why"},
		{"b.h", Cell, "other", Changed, long, "no", Additive, "why"},
		{"b.h", Cell, "third", Changed, "yes", "no", Additive, "why"},
	}}
	wide.finish([]string{"b.h"})
	assert.Equal(t, `rdma-core 1 → 2: breaking (exit status 4)
1 breaking, 3 additive, 0 without effect

Breaking
  b.h  `+long+`y added
         why

b.h
  cells
  + short  added  yes
  ! `+long+`y
           added    no  why
  + other  changed  `+long+` → no
                              why
  + third  changed  yes → no  why
`, wide.Text())
	text, err := r.JSON()
	require.NoError(t, err)
	var back struct {
		Old, New, Verdict string
		Entries           []struct{ Where, Kind, Name, Change, Old, New, Verdict, Reason string }
	}
	require.NoError(t, json.Unmarshal(text, &back))
	assert.Equal(t, "breaking", back.Verdict)
	require.Len(t, back.Entries, 3)
	assert.Equal(t, "a.h constant C retyped int unsigned int none",
		back.Entries[0].Where+" "+back.Entries[0].Kind+" "+back.Entries[0].Name+" "+back.Entries[0].Change+" "+
			back.Entries[0].Old+" "+back.Entries[0].New+" "+back.Entries[0].Verdict)
	empty, err := (&Report{Old: "1", New: "1"}).JSON()
	require.NoError(t, err)
	assert.Contains(t, string(empty), `"entries": []`)
}
