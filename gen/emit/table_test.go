// SPDX-License-Identifier: BSD-2-Clause

package emit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/rules"
)

// smallPostSend returns tables of ibv_post_send with answers of every kind.
func smallPostSend() []*rules.Grid {
	yes := rules.Validity{Answer: rules.Yes, Reason: "listed", Source: "ibv_post_send.3, rdma-core 9.0"}
	disputed := yes
	disputed.Note = `another source says no: "really"`
	no := rules.Validity{Answer: rules.No, Reason: "RC only", Source: yes.Source}
	elsewhere := rules.Validity{Answer: rules.Elsewhere, Reason: "ibv_wr_flush", Source: "verbs.h"}
	open := rules.Validity{Answer: rules.Unspecified, Reason: "provider", Source: "ibv_create_qp.3"}
	conditional := rules.Validity{Answer: rules.Yes, Condition: "sq_sig_all = 0", Reason: "any", Source: yes.Source}
	send := &rules.Grid{
		Name: "post_send", Package: "ibv", Release: "9.0", Pages: []string{"ibv_post_send.3"}, Result: "Validity",
		Question: "Which operations does ibv_post_send accept?", Func: "PostSendValidity", FuncDoc: "reports whether.",
		Items: []rules.Lookup{{Func: "PostSendQPTypes", Doc: "are the queue pair types."}},
		Dims: []rules.Dim{
			{Param: "qpt", What: "queue pair type", Type: "enum ibv_qp_type",
				Names: []string{"IBV_QPT_RC", "IBV_QPT_UD", "IBV_QPT_DRIVER"}},
			{Param: "op", What: "opcode", Type: "enum ibv_wr_opcode",
				Names: []string{"IBV_WR_SEND", "IBV_WR_RDMA_READ", "IBV_WR_FLUSH"}},
		},
		Cells: cellsOf(yes, yes, elsewhere, disputed, no, elsewhere, open, open, elsewhere),
	}
	flags := *send
	flags.Name, flags.Func, flags.First, flags.Items = "send_flags", "SendFlagValidity", "PostSendValidity", nil
	flags.Question = "Which send flags may an operation of ibv_post_send have?"
	flags.Dims = append(slices.Clone(send.Dims), rules.Dim{
		Param: "flag", What: "send flag", Type: "enum ibv_send_flags", Flags: true, Names: []string{"IBV_SEND_FENCE",
			"IBV_SEND_SIGNALED"},
	})
	flags.Cells = cellsOf(
		yes, conditional, yes, conditional, elsewhere, elsewhere,
		no, conditional, no, no, elsewhere, elsewhere,
		open, open, open, open, elsewhere, elsewhere,
	)
	return []*rules.Grid{send, &flags}
}

func cellsOf(all ...rules.Validity) []rules.Cell {
	cells := make([]rules.Cell, len(all))
	for i, v := range all {
		cells[i].Validity = v
	}
	return cells
}

const smallEnums = `package ibv

type QPType uint32
type WROpcode uint32
type SendFlags uint32

const (
	QPT_RC     QPType = 2
	QPT_UD     QPType = 4
	QPT_DRIVER QPType = 255

	WR_SEND      WROpcode = 2
	WR_RDMA_READ WROpcode = 4
	WR_FLUSH     WROpcode = 14

	SEND_FENCE    SendFlags = 1
	SEND_SIGNALED SendFlags = 2
)
`

const smallUse = `package ibv

import (
	"fmt"
	"testing"
)

var sink Validity

func Test(t *testing.T) {
	for _, v := range []Validity{
		PostSendValidity(QPT_RC, WR_SEND), PostSendValidity(QPT_UD, WR_SEND), PostSendValidity(QPT_UD, WR_RDMA_READ),
		PostSendValidity(QPT_DRIVER, WR_SEND), PostSendValidity(QPT_RC, WR_FLUSH),
		PostSendValidity(0, WR_SEND), PostSendValidity(1<<31, 1<<31), PostSendValidity(QPT_RC, 3), PostSendValidity(QPT_RC, ^WROpcode(0)),
		SendFlagValidity(QPT_RC, WR_SEND, SEND_SIGNALED), SendFlagValidity(QPT_UD, WR_SEND, SEND_FENCE),
		SendFlagValidity(QPT_RC, WR_FLUSH, SEND_FENCE), SendFlagValidity(QPT_RC, WR_SEND, 0),
		SendFlagValidity(QPT_RC, WR_SEND, SEND_FENCE|SEND_SIGNALED), SendFlagValidity(QPT_UD, WR_RDMA_READ, 1<<30),
		SendFlagValidity(9, WR_SEND, SEND_FENCE), SendFlagValidity(QPT_RC, 9, SEND_FENCE),
	} {
		fmt.Printf("%v|%s|%s|%s|%s\n", v.Answer, v.Condition, v.Reason, v.Source, v.Note)
	}
	fmt.Println(PostSendQPTypes(WR_SEND), PostSendQPTypes(WR_RDMA_READ), len(PostSendQPTypes(WR_FLUSH)), PostSendQPTypes(3) == nil, Answer(9))
	_ = append(PostSendQPTypes(WR_SEND), 77)
	fmt.Println(PostSendQPTypes(WR_SEND))
	fmt.Println(testing.AllocsPerRun(100, func() {
		sink = PostSendValidity(QPT_UD, WR_RDMA_READ)
		sink = PostSendValidity(1000, WROpcode(len(PostSendQPTypes(WR_SEND))))
		sink = SendFlagValidity(QPT_RC, WR_SEND, SEND_FENCE)
		sink = SendFlagValidity(QPT_RC, WR_SEND, 64)
	}))
}
`

// printGrids prints tables as a package, one file for each, with the required support files.
func printGrids(t *testing.T, grids []*rules.Grid) Files {
	t.Helper()
	e := &emitter{out: Files{}, plan: &rules.Plan{Package: rules.Packages[0], Release: "9.0", Grids: grids}}
	e.grids()
	e.copy("support", "helpers.go", "support.go", "address.go", "text.go")
	require.NoError(t, e.err)
	return e.out
}

// TestPostSend compiles and vets the tables together with their enumerations, and calls the lookups.
func TestPostSend(t *testing.T) {
	dir := t.TempDir()
	files := printGrids(t, smallPostSend())
	require.Len(t, files, 3+4)
	files["go.mod"], files["enum.go"], files["use_test.go"] = []byte("module example.org/ibv\n\ngo 1.26\n"),
		[]byte(smallEnums), []byte(smallUse)
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o644))
	}
	run := func(arguments ...string) string {
		cmd := exec.Command("go", arguments...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOPROXY=off")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	source := "ibv_post_send.3, rdma-core 9.0"
	header := "verbs.h, rdma-core 9.0"
	noType, noOpcode := "rdma-core 9.0 has no such queue pair type", "rdma-core 9.0 has no such opcode"
	noFlag := "not exactly one send flag of rdma-core 9.0"
	want := []string{
		"yes||listed|" + source + "|", `yes||listed|` + source + `|another source says no: "really"`, "no||RC only|" +
			source + "|",
		"unspecified||provider|ibv_create_qp.3|", "not in this verb||ibv_wr_flush|verbs.h|",
		"unspecified||" + noType + "|" + header + "|", "unspecified||" + noType + "|" + header + "|",
		"unspecified||" + noOpcode + "|" + header + "|", "unspecified||" + noOpcode + "|" + header + "|",
		"yes|sq_sig_all = 0|any|" + source + "|", "no||RC only|" + source + "|",
		"not in this verb||ibv_wr_flush|verbs.h|", "unspecified||" + noFlag + "|" + header + "|",
		"unspecified||" + noFlag + "|" + header + "|", "no||RC only|" + source + "|",
		"unspecified||" + noType + "|" + header + "|", "unspecified||" + noOpcode + "|" + header + "|",
		"[2 4] [2] 0 true Answer(9)", "[2 4]", "0",
	}
	got := strings.Split(run("test", "-v", "-count=1", "."), "\n") // go test also runs go vet
	assert.Equal(t, want, got[1:1+len(want)])
	run("vet", ".")
}

// TestGridsAreStable checks that the same data gives the same bytes, with a comment on every exported declaration.
func TestGridsAreStable(t *testing.T) {
	first := printGrids(t, smallPostSend())
	for range 5 {
		require.Equal(t, first, printGrids(t, smallPostSend()))
	}
	for file, names := range map[string][]string{
		"table.go": {"// Validity is a table's answer, with its reason and source.\ntype Validity"},
		"table_post_send.go": {"// Man: ibv_post_send(3)\nfunc PostSendValidity",
			"// Man: ibv_post_send(3)\nfunc PostSendQPTypes"},
		"table_send_flags.go": {"// Man: ibv_post_send(3)\nfunc SendFlagValidity"},
	} {
		for _, name := range names {
			assert.Contains(t, string(first[file]), name)
		}
	}
}

// TestGridWithTwoByteIndexes checks that indexes that do not fit one byte take two.
func TestGridWithTwoByteIndexes(t *testing.T) {
	g := smallPostSend()[0]
	for i := range 300 {
		g.Dims[1].Names = append(g.Dims[1].Names, fmt.Sprintf("IBV_WR_%d", i))
	}
	g.Cells = nil
	for i := range g.Size() {
		g.Cells = append(g.Cells, rules.Cell{Validity: rules.Validity{Answer: rules.No, Reason: fmt.Sprint(i)}})
	}
	files := printGrids(t, []*rules.Grid{g})
	assert.Contains(t, string(files["table_post_send.go"]), "postSendValidityCells = [3][303]uint16{")
}
