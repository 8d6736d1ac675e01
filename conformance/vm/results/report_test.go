// SPDX-License-Identifier: BSD-2-Clause

package results

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

var update = flag.Bool("update", false, "write the page")

// TestReport compares the pages with the recorded files and the tables.
func TestReport(t *testing.T) {
	for name, report := range map[string]func() (string, error){"README.md": Report, "siw.md": ReportSIW} {
		now, err := report()
		require.NoError(t, err)
		if *update {
			require.NoError(t, os.WriteFile(name, []byte(now), 0o644))
		}
		recorded, err := os.ReadFile(name)
		require.NoError(t, err)
		assert.Equal(t, string(recorded), now, "go test ./conformance/vm/results -update")
	}
}

// TestSIW checks that Soft-iWARP executes exactly the operations that iWARP has, and that the report of the other
// devices agrees with them.
func TestSIW(t *testing.T) {
	works := map[string]bool{"RDMA_WRITE": true, "SEND": true, "RDMA_READ": true, "SEND_WITH_INV": true}
	for _, kernel := range Kernels {
		table, ok, err := Read("siw-post_send-"+kernel+".csv", 3)
		require.NoError(t, err)
		require.True(t, ok)
		assert.Len(t, table.Rows, 12*6)
		for _, c := range verbs[0].of(withoutStates(table)) {
			if c.flags == "SIGNALED" {
				assert.Equal(t, works[c.opcode], c.works, "%s %s: %s", kernel, c.opcode, c.measured)
			}
		}
		roce, _, err := Read("post_send-"+kernel+".csv", 3)
		require.NoError(t, err)
		soft, err := answersOfSoft("post_send", kernel, roce)
		require.NoError(t, err)
		for i, c := range verbs[0].of(soft) {
			if c.qp == "RC" && c.opcode == "TSO" {
				assert.Equal(t, "post EINVAL", c.measured)
				assert.NotEqual(t, roce.Rows[i], soft.Rows[i])
			}
		}
	}
}

// TestRecorded checks that all combinations are recorded for each kernel, and that common ones work.
func TestRecorded(t *testing.T) {
	for _, kernel := range Kernels {
		for _, v := range verbs {
			cells, err := v.cells(kernel)
			require.NoError(t, err)
			sound := 0
			for _, c := range cells {
				if c.opcode == "SEND" && c.setter != "inline" &&
					slices.Contains([]string{"none", "SIGNALED", "SIGNALED|SOLICITED"}, c.flags) {
					assert.Equal(t, Agreed, c.verdict(), "%s %s %+v", kernel, v.name, c)
					sound++
				}
				assert.False(t, c.qp == "UD" && c.opcode == "RDMA_READ" && c.works, "%s %+v", kernel, c)
			}
			assert.GreaterOrEqual(t, sound, 9, "%s %s", kernel, v.name)
		}
		table, ok, err := Read("post_send-"+kernel+".csv", 3)
		require.NoError(t, err)
		require.True(t, ok)
		assert.Len(t, table.Rows, 3*16*6)
	}
}

// TestTransitions checks that no kernel accepts a transition without an attribute that the table requires.
func TestTransitions(t *testing.T) {
	for _, kernel := range Kernels {
		all, err := transitions(kernel)
		require.NoError(t, err)
		assert.Len(t, all, 224)
		without := 0
		for _, x := range all {
			if strings.HasPrefix(x.attributes, "without ") {
				without++
				assert.NotEqual(t, "0", x.answer, "%+v", x)
			}
		}
		assert.Equal(t, 26, without)
	}
	assert.True(t, transition{qp: "RC", from: "RESET", to: "INIT", attributes: "required"}.expected())
	assert.False(t, transition{qp: "RC", from: "RESET", to: "INIT", attributes: "without PORT"}.expected())
	assert.False(t, transition{qp: "RC", from: "RESET", to: "RTS", attributes: "required"}.expected())
}

// TestEvents checks that every asynchronous event either occurred on some kernel or is listed with the reason why it
// cannot occur, but not both.
func TestEvents(t *testing.T) {
	occurred, cannot := map[string]bool{}, map[string]bool{}
	for _, kernel := range Kernels {
		table, ok, err := Read("events-"+kernel+".csv", 1)
		require.NoError(t, err)
		require.True(t, ok, kernel)
		for _, row := range table.Rows {
			if row[2] != "-" {
				cannot[row[0]] = true
				continue
			}
			for name := range strings.FieldsSeq(row[1]) {
				occurred[name] = true
			}
		}
	}
	for event := ibv.EVENT_CQ_ERR; event <= ibv.EVENT_DEVICE_SPEED_CHANGE; event++ {
		name := strings.TrimPrefix(event.String(), "IBV_EVENT_")
		assert.NotEqual(t, occurred[name], cannot[name], "%s: raised %v, cannot be raised %v", name, occurred[name],
			cannot[name])
	}
}

func TestDifferences(t *testing.T) {
	recorded := Table{Columns: []string{"a", "b", "x"}, Keys: 2,
		Rows: [][]string{{"1", "1", "old"}, {"1", "2", "same"}, {"2", "1", "gone"}}}
	now := Table{Columns: []string{"a", "b", "x"}, Keys: 2,
		Rows: [][]string{{"1", "2", "same"}, {"1", "1", "new"}, {"3", "1", "come"}}}
	assert.Equal(t, []string{"1 1: x: recorded old, measured new", "2 1: recorded, but not measured",
		"3 1: measured, but not recorded"}, Differences(recorded, now))
	assert.Empty(t, Differences(recorded, recorded))
	now.Columns = []string{"a", "b", "y"}
	assert.Len(t, Differences(recorded, now), 1)
	assert.Equal(t, "a,b,x\n1,1,old\n1,2,same\n2,1,gone\n", string(recorded.Encode()))
}

func TestVerdicts(t *testing.T) {
	v := verbs[0]
	for _, c := range []struct {
		cell
		want Verdict
	}{
		{cell{qp: "RC", opcode: "SEND", flags: "SIGNALED", works: true}, Agreed},
		{cell{qp: "RC", opcode: "SEND", flags: "SIGNALED"}, Missing},
		{cell{qp: "UD", opcode: "RDMA_READ", flags: "none", works: true}, Undocumented},
		{cell{qp: "UD", opcode: "RDMA_READ", flags: "SIGNALED|INLINE"}, Refused},
		{cell{qp: "RC", opcode: "RDMA_READ", flags: "SIGNALED|INLINE"}, Refused},
		{cell{qp: "RC", opcode: "255", flags: "SIGNALED"}, Refused},
	} {
		c.documented = v.documented(c.cell)
		assert.Equal(t, c.want, c.verdict(), "%+v", c.cell)
	}
	assert.Equal(t, ibv.WR_RDMA_READ, number[ibv.WROpcode]("RDMA_READ", "IBV_WR_"))
	assert.Equal(t, ibv.QPT_DRIVER, number[ibv.QPType]("DRIVER", "IBV_QPT_"))
	assert.Equal(t, ibv.SEND_IP_CSUM, number[ibv.SendFlags]("IP_CSUM", "IBV_SEND_"))
}

// TestDoctor checks that goverbs doctor reported exactly the injected fault each time, and that its remedy worked.
func TestDoctor(t *testing.T) {
	for _, kernel := range []string{"6.1", "6.12"} {
		for file, faults := range map[string]int{"doctor-": 17, "doctor-pair-": 14} {
			table, ok, err := Read(file+kernel+".csv", 1)
			require.NoError(t, err)
			require.True(t, ok, kernel)
			assert.Len(t, table.Rows, faults)
			for _, row := range table.Rows {
				assert.Equal(t, []string{"true", "true"}, row[2:4], "%s %v", kernel, row)
				assert.NotEqual(t, "false", row[4], "%s %v", kernel, row)
			}
		}
	}
}
