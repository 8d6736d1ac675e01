// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
)

// page has the format of ibv_post_send.3, with made-up text.
const page = `.\" made up for tests
.TH IBV_POST_SEND 3 2020-01-01 libibverbs "Test"
.SH "NAME"
ibv_post_send \- give work to a queue pair
.SH "DESCRIPTION"
.nf
struct ibv_send_wr {
.in +8
uint64_t  wr_id;  /* any | number */
.in -8
};
.fi
.PP
What goes where:
.PP
.nf
OPCODE                      | IBV_QPT_UD | IBV_QPT_UC | IBV_QPT_RC | IBV_QPT_XRC_SEND | IBV_QPT_RAW_PACKET
\-\-\-\-\-\-\-+\-\-\-+\-\-\-+\-\-\-+\-\-\-\-+\-\-\-\-\-
IBV_WR_SEND                 |     X      |     X      |     X      |         X        |         X
IBV_WR_SEND_WITH_IMM        |     X      |     X      |     X      |         X        |
IBV_WR_RDMA_WRITE           |            |     X      |     X      |         X        |
IBV_WR_RDMA_WRITE_WITH_IMM  |            |     X      |     X      |         X        |
IBV_WR_RDMA_READ            |            |            |     X      |         X        |
IBV_WR_ATOMIC_CMP_AND_SWP   |            |            |     X      |         X        |
IBV_WR_ATOMIC_FETCH_AND_ADD |            |            |     X      |         X        |
IBV_WR_LOCAL_INV            |            |     X      |     X      |         X        |
IBV_WR_BIND_MW              |            |     X      |     X      |         X        |
IBV_WR_SEND_WITH_INV        |            |     X      |     X      |         X        |
IBV_WR_TSO                  |     X      |            |            |                  |         X
.fi
.PP
And the \s-1flags\s0:
.PP
.TP
.B IBV_SEND_FENCE \fR Wait for what came before.  Valid only for QPs with Transport Service Type \fBIBV_QPT_RC
.TP
.B IBV_SEND_SIGNALED \fR Ask for a completion.  Relevant only if QP was created with sq_sig_all=0
.TP
.B IBV_SEND_SOLICITED \fR Wake the peer.  Valid only for Send and RDMA Write with immediate
.TP
.B IBV_SEND_INLINE \fR Copy the bytes
at once.  Valid only for Send and RDMA Write.  The key is not looked at.
.TP
.B IBV_SEND_IP_CSUM \fR Let the hardware sum.
Valid only when \fBdevice_cap_flags\fR in device_attr indicates that it can.
.SH "SEE ALSO"
.BR ibv_create_qp (3)
`

func lineOf(t *testing.T, part string) int {
	t.Helper()
	i := strings.Index(page, part)
	require.GreaterOrEqual(t, i, 0, part)
	return 1 + strings.Count(page[:i], "\n")
}

func TestReadPostSend(t *testing.T) {
	table, flags, err := ReadPostSend("ibv_post_send.3", []byte(page))
	require.NoError(t, err)
	assert.Equal(t, PostSendName, table.Name)
	assert.Equal(t, "ibv_post_send.3", table.Page)
	assert.Equal(t, []string{"IBV_QPT_UD", "IBV_QPT_UC", "IBV_QPT_RC", "IBV_QPT_XRC_SEND", "IBV_QPT_RAW_PACKET"},
		table.Columns)
	assert.Len(t, table.Rows, 11)
	assert.Equal(t, model.TableRow{Name: "IBV_WR_SEND_WITH_IMM", Cells: []string{"yes", "yes", "yes", "yes", "no"}},
		table.Rows[1])
	assert.Equal(t, model.TableRow{Name: "IBV_WR_TSO", Cells: []string{"yes", "no", "no", "no", "yes"}}, table.Rows[10])
	send := []string{"IBV_WR_SEND", "IBV_WR_SEND_WITH_IMM", "IBV_WR_SEND_WITH_INV"}
	p := "ibv_post_send.3"
	assert.Equal(t, []model.Flag{
		{Name: "IBV_SEND_FENCE", Page: p, QPTypes: []string{"IBV_QPT_RC"}},
		{Name: "IBV_SEND_SIGNALED", Page: p, SigAll: true},
		{Name: "IBV_SEND_SOLICITED", Page: p, Opcodes: append(send[:3:3], "IBV_WR_RDMA_WRITE_WITH_IMM")},
		{Name: "IBV_SEND_INLINE", Page: p,
			Opcodes: append(send[:3:3], "IBV_WR_RDMA_WRITE", "IBV_WR_RDMA_WRITE_WITH_IMM")},
		{Name: "IBV_SEND_IP_CSUM", Page: p, Capability: "device_cap_flags"},
	}, flags)
}

// TestReadPostSendRejects makes one change to the page in each case. at is part of the line that the error names.
func TestReadPostSendRejects(t *testing.T) {
	const header = "OPCODE                      | IBV_QPT_UD | "
	const read = "IBV_WR_RDMA_READ            |            |            |     X      |         X        |"
	const rule = `\-\-\-\-\-\-\-+\-\-\-+\-\-\-+\-\-\-+\-\-\-\-+\-\-\-\-\-`
	for name, c := range map[string]struct{ old, new, at, want string }{
		"no table":       {"OPCODE  ", "OPERATION", "", "no opcode table"},
		"table in prose": {".nf\nOPCODE", ".PP\nOPCODE", "OPCODE", "right after .nf"},
		"second table":   {".SH \"SEE", "OPCODE | IBV_QPT_UD\n.SH \"SEE", "", "second opcode table"},
		"column added": {"IBV_QPT_RAW_PACKET\n", "IBV_QPT_RAW_PACKET | IBV_QPT_NEW\n", "OPCODE",
			"6 queue pair types, not 5"},
		"column twice":          {"IBV_QPT_UC |", "IBV_QPT_UD |", "OPCODE", "IBV_QPT_UD"},
		"column of another":     {header, strings.Replace(header, "IBV_QPT_UD", "UD", 1), "OPCODE", `"UD"`},
		"no rule":               {rule + "\n", "", "", "no line of dashes"},
		"rule of other columns": {rule, rule + `+\-`, `\-\-+`, "no line of dashes"},
		"unknown mark":          {read, strings.Replace(read, "X", "O", 1), "IBV_WR_RDMA_READ", `marked "O"`},
		"mark with more":        {read, strings.Replace(read, "X", "X*", 1), "IBV_WR_RDMA_READ", `marked "X*"`},
		"cell missing":          {read, read[:len(read)-1], "IBV_WR_RDMA_READ", "4 cells, not 5"},
		"cell too many":         {read, read + "|", "IBV_WR_RDMA_READ", "6 cells, not 5"},
		"row of another name":   {"IBV_WR_TSO ", "IBV_WC_TSO ", "IBV_WR_TSO", "IBV_WC_TSO"},
		"row twice": {"IBV_WR_BIND_MW  ", "IBV_WR_LOCAL_INV", "IBV_WR_BIND_MW",
			"second row for IBV_WR_LOCAL_INV"},
		"row gone":             {read + "\n", "", "", "10 rows, not 11"},
		"row added":            {read, strings.Replace(read, "READ", "PEEK", 1) + "\n" + read, "", "12 rows, not 11"},
		"table without end":    {"|         X\n.fi\n.PP\nAnd", "|         X\nAnd", "", "is not the name of an opcode"},
		"request before flags": {"And the", ".SH \"MORE\"\nAnd the", "And the", `".SH \"MORE\"" is between`},
		"flags gone":           {page[strings.Index(page, ".TP"):], "", "", "0 send flags"},
		"flag gone": {".TP\n.B IBV_SEND_SIGNALED \\fR Ask for a completion.  Relevant only if QP was " +
			"created with sq_sig_all=0\n", "", "", "4 send flags"},
		"flag twice": {".B IBV_SEND_SIGNALED", ".B IBV_SEND_FENCE", ".B IBV_SEND_SIGNALED",
			"IBV_SEND_FENCE is listed a second time"},
		"flag in other form": {".B IBV_SEND_FENCE \\fR", ".BI IBV_SEND_FENCE", ".B IBV_SEND_FENCE",
			"is not the entry of a send flag"},
		"request ends the list": {".SH \"SEE", ".PP\n.SH \"SEE", ".SH \"SEE", `".PP" ends the list`},
		"page ends after .TP":   {page[strings.Index(page, ".B IBV_SEND_IP_CSUM")-1:], "", "", "nothing follows .TP"},
		"unknown limit": {"The key is not looked at", "The key must be zero", "at once",
			`unknown sentence "The key must be zero"`},
		"unknown condition": {"sq_sig_all=0", "sq_sig_all=1", "SIGNALED", "IBV_SEND_SIGNALED: unknown sentence"},
		"unknown when": {`when \fBdevice_cap_flags\fR`, `when \fBother_flags\fR`, "Valid only when",
			"IBV_SEND_IP_CSUM: unknown sentence"},
		"unknown operation": {"Send and RDMA Write.", "Send and RDMA Peek.", "at once",
			`unknown operation "RDMA Peek"`},
		"unknown type": {"Type \\fBIBV_QPT_RC", "Type \\fBIBV_QPT_RD", "IBV_SEND_FENCE",
			`"IBV_QPT_RD" is repeated, or not a queue pair type`},
		"type twice": {"Type \\fBIBV_QPT_RC", "Type IBV_QPT_RC, IBV_QPT_RC", "IBV_SEND_FENCE",
			`"IBV_QPT_RC" is repeated, or not a`},
		"limited twice": {"The key is not looked at", "Valid only for Send", "at once",
			`"Valid only for Send"`},
		"types limited twice": {"\\fBIBV_QPT_RC",
			"IBV_QPT_RC.  Valid only for QPs with Transport Service Type IBV_QPT_UC", "IBV_SEND_FENCE",
			"unknown sentence"},
		"operation not listed": {"IBV_WR_SEND_WITH_INV        ", "IBV_WR_SEND_AND_FORGET      ", "IBV_SEND_SOLICITED",
			`IBV_WR_SEND_WITH_INV counts as "Send"`},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, 1, strings.Count(page, c.old), "the case must change exactly one place")
			_, _, err := ReadPostSend("p.3", []byte(strings.Replace(page, c.old, c.new, 1)))
			require.ErrorContains(t, err, c.want)
			assert.Regexp(t, `^p\.3:[1-9][0-9]*: `, err.Error())
			if c.at != "" {
				assert.True(t, strings.HasPrefix(err.Error(), fmt.Sprintf("p.3:%d:", lineOf(t, c.at))), err)
			}
		})
	}
	_, _, err := ReadPostSend("p.3", nil)
	require.ErrorContains(t, err, "p.3:1: the page has no opcode table")
}

func FuzzReadPostSend(f *testing.F) {
	f.Add([]byte(page))
	f.Add([]byte(""))
	f.Add([]byte(".nf\nOPCODE |\n"))
	f.Add([]byte(page[strings.Index(page, ".nf\nOPCODE"):]))
	f.Add([]byte(strings.ReplaceAll(page, "X", "\xff")))
	f.Add([]byte(strings.ReplaceAll(page, "\n", "\r\n")))
	f.Fuzz(func(t *testing.T, text []byte) {
		table, flags, err := ReadPostSend("p.3", text)
		if err != nil {
			require.Regexp(t, `^p\.3:[1-9][0-9]*: `, err.Error())
			return
		}
		require.Len(t, table.Columns, postSendColumns)
		require.Len(t, table.Rows, postSendRows)
		require.Len(t, flags, postSendFlags)
		r := model.Release{
			Project: "rdma-core", Name: "1", Targets: []string{"amd64"}, Tables: []model.Table{table}, Flags: flags,
		}
		encoded, err := r.Encode()
		require.NoError(t, err)
		_, err = model.Decode("model", encoded)
		require.NoError(t, err)
	})
}
