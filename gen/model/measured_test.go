// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const measuredText = `# Soft-RoCE, Linux 6.1.176, rdma-core 44.0
qp_type,opcode,flags,post,wc_status,qp_state,data
RC,SEND,none,0,none,RTS,ok
RC,SEND,SIGNALED,0,SUCCESS,RTS,ok
`

func TestMeasured(t *testing.T) {
	m, err := ParseMeasured("rxe-6.1-post_send.csv", []byte(measuredText))
	require.NoError(t, err)
	assert.Equal(t, "rxe 6.1", m.Name())
	assert.Equal(t, "post_send", m.Table)
	assert.Equal(t, "Soft-RoCE, Linux 6.1.176, rdma-core 44.0", m.Source)
	assert.Equal(t, "SUCCESS", m.At(m.Rows[1], "wc_status"))
	assert.Equal(t, "", m.At(m.Rows[1], "create"), "no such column")
	assert.Equal(t, "rxe-6.1-post_send.csv", m.File())
	assert.Equal(t, measuredText, string(m.Encode()))
	_, err = ParseMeasured("mlx5-6.12.3-create_qp.csv", []byte("# a device\nqp_type,create\nRC,0\n"))
	require.NoError(t, err)
	_, err = ParseMeasured("rxe-6.1-post_send.csv", []byte(measuredText+"RC,SEND,SIGNALED|FENCE,0,SUCCESS,RTS,ok\n"))
	require.NoError(t, err)
}

func TestMeasuredRefused(t *testing.T) {
	for name, c := range map[string]struct{ file, from, to, want string }{
		"no kernel":      {"rxe-post_send.csv", "", "", "PROVIDER-KERNEL-TABLE.csv"},
		"unknown kernel": {"rxe-next-post_send.csv", "", "", "PROVIDER-KERNEL-TABLE.csv"},
		"unknown table":  {"rxe-6.1-modify_qp.csv", "", "", "want the columns"},
		"no source": {"", "# Soft-RoCE, Linux 6.1.176, rdma-core 44.0\n", "",
			"the first line must name the measured system"},
		"empty source": {"", "Soft-RoCE, Linux 6.1.176, rdma-core 44.0", "", "does not name the measured system"},
		"columns":      {"", "opcode,flags", "flags,opcode", "want the columns qp_type,opcode,flags"},
		"no rows":      {"", "RC,SEND,none,0,none,RTS,ok\nRC,SEND,SIGNALED,0,SUCCESS,RTS,ok\n", "", "no rows"},
		"short row":    {"", "SUCCESS,RTS,ok", "SUCCESS,RTS", `"RC,SEND,SIGNALED,0,SUCCESS,RTS": want 7 columns`},
		"cell":         {"", "SUCCESS", "*", `wc_status cannot be "*"`},
		"empty cell":   {"", "SUCCESS", "", `wc_status cannot be ""`},
		"quote":        {"", "SUCCESS", `"SUCCESS`, "rxe-6.1-post_send.csv: "},
		"twice":        {"", "SIGNALED", "none", "duplicate RC,SEND,none"},
		"half":         {"", "RC,SEND,none,0,none,RTS,ok\n", "", "RC,SEND,none is missing"},
		"flags":        {"", "SIGNALED", "INLINE", "want the flags none and SIGNALED"},
		"unsignalled": {"", "RC,SEND,SIGNALED,0", "RC,SEND,INLINE,0",
			"want the flags none and SIGNALED, and at most SIGNALED|INLINE"},
		"not as written": {"", "SUCCESS", `"SUCCESS"`, "not in the format of gen measured"},
	} {
		t.Run(name, func(t *testing.T) {
			file := c.file
			if file == "" {
				file = "rxe-6.1-post_send.csv"
			}
			text := measuredText
			if c.from != "" {
				require.Contains(t, text, c.from)
				text = strings.Replace(text, c.from, c.to, 1)
			}
			_, err := ParseMeasured(file, []byte(text))
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, file)
		})
	}
	assert.ErrorContains(t, (&Measured{Provider: "rxe", Kernel: "6.1", Table: "modify_qp", Source: "a"}).Check(),
		`unknown table "modify_qp"`)
	assert.ErrorContains(t, (&Measured{Provider: "RXE", Kernel: "6.1", Table: "post_send", Source: "a"}).Check(),
		"is not PROVIDER")
}
