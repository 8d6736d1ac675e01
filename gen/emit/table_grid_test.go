// SPDX-License-Identifier: BSD-2-Clause

package emit

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/grids"
	"github.com/goverbs/goverbs/gen/rules"
)

// smallGrid returns a table with three dimensions, values of every kind, its own list and set, and a condition.
func smallGrid() *rules.Grid {
	variant := &rules.GridType{Name: "Way", Doc: "is a way.",
		Items: []rules.GridItem{{Go: "WayIn", Prints: "in", Doc: "inwards"}, {Go: "WayOut", Prints: "out"}}}
	sort := &rules.GridType{Name: "Sorts", Doc: "are sorts.", Set: true,
		Items: []rules.GridItem{{Go: "SortA", Prints: "a"}, {Go: "SortB", Prints: "b"}}}
	g := &rules.Grid{
		Name: "goes", Package: "ibv", Release: "9.0", Question: "What <goes>?", Pages: []string{"p.3"},
		Func: "Goes", FuncDoc: "reports what goes.", Result: "GoesRule", Doc: "is the answer of Goes.",
		All:   rules.Lookup{Func: "GoesAll", Doc: "returns all."},
		Items: []rules.Lookup{{Func: "GoesTypes", Doc: "are types.", Dim: 0}},
		Dims: []rules.Dim{
			{Param: "qpt", What: "queue pair type", Type: "enum ibv_qp_type",
				Names: []string{"IBV_QPT_RC", "IBV_QPT_UD"}},
			{Param: "from", What: "first way", Type: "Way", Names: []string{"in", "out"}},
			{Param: "to", What: "second way", Type: "Way", Names: []string{"in", "out"}},
		},
		Values: []rules.ValueDef{
			{Go: "Mask", Doc: "a mask", Kind: rules.Mask, Type: "enum ibv_send_flags"}, {Go: "One", Doc: "one",
				Kind: rules.One, Type: "enum ibv_wr_opcode"},
			{Go: "List", Doc: "a list", Kind: rules.List, Type: "Way"}, {Go: "Count", Doc: "a number",
				Kind: rules.Number}, {Go: "Words", Doc: "text", Kind: rules.Text},
			{Go: "Set", Doc: "a set", Kind: rules.Mask, Type: "Sorts"},
		},
		Types: []*rules.GridType{variant, sort}, Own: []*rules.GridType{variant, sort},
	}
	no := rules.Cell{Validity: rules.Validity{Answer: rules.No, Reason: "not listed", Source: "p.3, rdma-core 9.0"},
		Values: make([]rules.Value, 6)}
	for range g.Size() {
		g.Cells = append(g.Cells, no)
	}
	*g.At("IBV_QPT_RC", "in", "out") = rules.Cell{
		Validity: rules.Validity{Answer: rules.Yes, Reason: "listed", Source: "p.3, rdma-core 9.0"},
		Values: []rules.Value{{"IBV_SEND_FENCE", "IBV_SEND_SIGNALED"}, {"IBV_WR_SEND"}, {"out", "in"}, {"7"},
			{"some words"}, {"a", "b"}},
	}
	*g.At("IBV_QPT_UD", "in", "out") = rules.Cell{
		Validity: rules.Validity{Answer: rules.Capability, Condition: "a capability", Reason: "because",
			Source: "another page"},
		Values: []rules.Value{{}, {"IBV_WR_SEND"}, {}, {"0"}, {"other words"}, {"b"}},
	}
	return g
}

const gridUse = `package ibv

import (
	"fmt"
	"testing"
)

var sink GoesRule

func Test(t *testing.T) {
	fmt.Printf("%v\n", Goes(QPT_RC, WayIn, WayOut))
	fmt.Printf("%v\n", Goes(QPT_UD, WayIn, WayOut))
	fmt.Printf("%v\n", Goes(QPT_UD, WayOut, WayOut))
	fmt.Println(Goes(7, WayIn, WayOut).Reason, "|", Goes(QPT_RC, 9, WayOut).Reason, "|", Goes(QPT_RC, WayIn, 1<<31).Reason)
	fmt.Println(GoesAll(QPT_RC, WayIn, WayOut))
	fmt.Println(GoesAll(QPT_RC, WayIn, WayIn))
	fmt.Println(GoesTypes(WayIn, WayOut), GoesTypes(WayIn, WayIn), GoesTypes(9, WayIn) == nil, Way(5), Sorts(5))
	fmt.Println(testing.AllocsPerRun(100, func() {
		sink = Goes(QPT_RC, WayIn, WayOut)
		sink = Goes(QPT_RC, 77, WayOut)
		_, _, sink.List, _, _, _, _ = GoesAll(QPT_UD, WayIn, WayOut)
		_ = GoesTypes(WayIn, WayOut)
	}))
}
`

// TestGrid compiles a table with values and calls its lookups.
func TestGrid(t *testing.T) {
	files := printGrids(t, []*rules.Grid{smallGrid()})
	files["go.mod"], files["enum.go"], files["use_test.go"] = []byte("module example.org/ibv\n\ngo 1.26\n"),
		[]byte(smallEnums), []byte(gridUse)
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o644))
	}
	cmd := exec.Command("go", "test", "-v", "-count=1", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOPROXY=off")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	got := strings.Split(string(out), "\n")
	assert.Equal(t, []string{
		"{{yes  listed p.3, rdma-core 9.0 } 3 2 [out in] 7 some words a|b}",
		"{{needs a capability a capability because another page } 0 2 [] 0 other words b}",
		"{{no  not listed p.3, rdma-core 9.0 } 0 0 [] 0  0}",
		"rdma-core 9.0 has no such queue pair type | no such first way | no such second way",
		"3 2 [out in] 7 some words a|b true",
		"0 0 [] 0  0 false",
		"[2] [] true Way(5) a|0x4",
		"0",
	}, got[1:9])
	assert.Contains(t, string(files["table_goes.go"]),
		"// Man: p(3)\nfunc Goes(qpt QPType, from Way, to Way) GoesRule {")
}

// TestImportedAnswers checks that a package uses the answer types of the package that it imports.
func TestImportedAnswers(t *testing.T) {
	e := &emitter{out: Files{},
		plan: &rules.Plan{Package: rules.Package{Name: "cm", Headers: []string{"rdma/cm.h"}}, Release: "9.0",
			Shared: "example.org/ibv", Grids: []*rules.Grid{smallGrid()}}}
	e.grids()
	require.NoError(t, e.err)
	assert.Contains(t, string(e.out["table.go"]), "Validity = ibv.Validity")
	assert.Contains(t, string(e.out["table.go"]), "AnswerYes             = ibv.AnswerYes")
}

func TestTablesText(t *testing.T) {
	var b strings.Builder
	require.NoError(t, grids.Text(&b, []*rules.Grid{smallGrid()}))
	assert.Equal(t, `goes: What <goes>? (p.3, rdma-core 9.0)

queue pair type RC
first way  in  out
in         .   X
out        .   .

queue pair type UD
first way  in  out
in         .   c[1]
out        .   .

X yes   . no   c needs a capability   - with another function   ? unspecified

queue pair type  first way  second way  Mask                              One          List    Count  Words        Set
RC               in         out         IBV_SEND_FENCE IBV_SEND_SIGNALED  IBV_WR_SEND  out in  7      some words   a b
UD               in         out         none                              IBV_WR_SEND  none    0      other words  b

[1] a capability; because (another page)
`, b.String())
}

// TestTablesTextMeasured checks that a measured table cites its measurement and has notes only for disagreements.
func TestTablesTextMeasured(t *testing.T) {
	cell := func(a rules.Answer, note, refused string) rules.Cell {
		return rules.Cell{Validity: rules.Validity{Answer: a, Reason: "measured", Source: "measured: a " +
			"device", Note: note},
			Values: []rules.Value{{refused}}}
	}
	g := &rules.Grid{
		Name: "m", Question: "What was measured?", Release: "9.0", Pages: []string{"p.3"}, Cited: "measured: a device",
		Values: []rules.ValueDef{{Go: "Refused", Kind: rules.Text}},
		Dims: []rules.Dim{{What: "measurement", Names: []string{"dev 6.1"}},
			{What: "opcode", Names: []string{"A", "B"}}},
		Cells: []rules.Cell{cell(rules.Yes, "", "none"), cell(rules.No, "p.3 says yes", "post EINVAL")},
	}
	var b bytes.Buffer
	require.NoError(t, grids.Text(&b, []*rules.Grid{g}))
	assert.Equal(t, `m: What was measured? (measured: a device)

measurement  A  B
dev 6.1      X  .[1]

X yes   . no   c needs a capability   - with another function   ? unspecified

measurement  opcode  Refused
dev 6.1      A       none
dev 6.1      B       post EINVAL

[1] p.3 says yes
`, b.String())
}

// TestTablesJSON checks that every cell has all its facts.
func TestTablesJSON(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, grids.JSON(&b, append(smallPostSend(), smallGrid())))
	var tables []struct {
		Name  string
		Cells []struct {
			At                        map[string]string
			Answer, Condition, Reason string
			Values                    map[string][]string
		}
	}
	require.NoError(t, json.Unmarshal(b.Bytes(), &tables))
	require.Len(t, tables, 3)
	assert.Len(t, tables[0].Cells, 9)
	assert.Len(t, tables[1].Cells, 18)
	require.Len(t, tables[2].Cells, 8)
	cell := tables[2].Cells[5]
	assert.Equal(t, map[string]string{"qpt": "IBV_QPT_UD", "from": "in", "to": "out"}, cell.At)
	assert.Equal(t, "needs a capability", cell.Answer)
	assert.Equal(t, "a capability", cell.Condition)
	assert.Equal(t, []string{"b"}, cell.Values["Set"])
	assert.Equal(t, []string{}, cell.Values["Mask"], "an empty mask is stated")
}

// TestTablesHTML checks that the page needs no external resources, escapes its contents, and links every number to a
// note.
func TestTablesHTML(t *testing.T) {
	var b strings.Builder
	require.NoError(t, grids.HTML(&b, append(smallPostSend(), smallGrid())))
	page := b.String()
	assert.Contains(t, page, "What &lt;goes&gt;?")
	assert.NotRegexp(t, `(?i)<script|<link|src=|https?:`, page)
	for _, m := range regexp.MustCompile(`href="#([^"]+)"`).FindAllStringSubmatch(page, -1) {
		assert.Contains(t, page, `id="`+m[1]+`"`)
	}
	assert.Equal(t, 9+18+8, strings.Count(page, "<td class=\"")-strings.Count(page, "<td class=\"v\""),
		"a mark for each cell")
	assert.Contains(t, page, "another source says no: &#34;really&#34;")
	require.NoError(t, grids.HTML(&b, nil))
}

func TestUnexported(t *testing.T) {
	assert.Equal(t, "wrPost wrFlagValidity modifyQP goes",
		strings.Join([]string{unexported("WRPost"), unexported("WRFlagValidity"), unexported("ModifyQP"),
			unexported("Goes")}, " "))
}
