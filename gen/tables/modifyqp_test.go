// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// modifyQPPage returns a made-up page in the format of the real one.
func modifyQPPage() string {
	page := ".SH NOTES\nThe tables.\n"
	for _, t := range modifyQPTypes {
		page += ".nf\nFor QP Transport Service Type \\fB " + t + `\fR:
.sp
Next state     Required attributes
\-\-\-\-\-\-     \-\-\-\-\-\-\-\-
Init \fB          IBV_QP_STATE, IBV_QP_` + strings.TrimPrefix(t, "IBV_QPT_") + `, \fR
     \fB          IBV_QP_PORT \fR
RTR  \fB          IBV_QP_STATE \fR
RTS  \fB          IBV_QP_STATE, IBV_QP_SQ_PSN\fR
.fi
.PP
`
	}
	return page + ".SH END\n"
}

func TestReadModifyQP(t *testing.T) {
	table, err := ReadModifyQP("p.3", []byte(modifyQPPage()))
	require.NoError(t, err)
	assert.Equal(t, []string{"IBV_QPS_INIT", "IBV_QPS_RTR", "IBV_QPS_RTS"}, table.Columns)
	require.Len(t, table.Rows, 4)
	assert.Equal(t, "IBV_QPT_RC", table.Rows[2].Name)
	assert.Equal(t, []string{"IBV_QP_STATE, IBV_QP_RC, IBV_QP_PORT", "IBV_QP_STATE", "IBV_QP_STATE, IBV_QP_SQ_PSN"},
		table.Rows[2].Cells)
}

func TestReadModifyQPRejects(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"no tables":         {"For QP Transport", "For Transport", "the page has tables for []"},
		"another type":      {"IBV_QPT_UC", "IBV_QPT_DRIVER", "check the new page"},
		"type twice":        {"IBV_QPT_UC", "IBV_QPT_UD", "a second table for IBV_QPT_UD"},
		"unknown state":     {"RTR  ", "SQD  ", `"SQD" is not the next state`},
		"missing state":     {"RTR  \\fB          IBV_QP_STATE \\fR\n", "", `"RTS" is not the next state`},
		"end too early":     {"RTS  \\fB          IBV_QP_STATE, IBV_QP_SQ_PSN\\fR\n", "", "ends after 2 of 3 states"},
		"another state":     {".fi", "ERR  \\fB  IBV_QP_STATE\\fR\n.fi", `"ERR" is not the next state`},
		"unknown attribute": {"IBV_QP_PORT", "port_num", `"port_num" is repeated, or not an attribute`},
		"attribute twice":   {"IBV_QP_PORT", "IBV_QP_STATE", `"IBV_QP_STATE" is repeated, or not an attribute`},
		"comma at the end":  {"IBV_QP_SQ_PSN\\fR", "IBV_QP_SQ_PSN,\\fR", "ends after 3 of 3 states"},
		"no end":            {".fi\n", "", "not"},
	} {
		t.Run(name, func(t *testing.T) {
			page := modifyQPPage()
			require.Contains(t, page, c.old)
			_, err := ReadModifyQP("p.3", []byte(strings.ReplaceAll(page, c.old, c.new)))
			require.ErrorContains(t, err, "p.3:")
			require.ErrorContains(t, err, c.want)
		})
	}
}

func FuzzReadModifyQP(f *testing.F) {
	f.Add(modifyQPPage())
	f.Fuzz(func(t *testing.T, page string) {
		table, err := ReadModifyQP("p.3", []byte(page))
		if err != nil {
			return
		}
		for _, row := range table.Rows {
			require.Len(t, row.Cells, len(table.Columns))
		}
	})
}
