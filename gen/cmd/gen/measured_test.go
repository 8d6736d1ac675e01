// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const postSendResults = `qp_type,opcode,flags,post,bad_wr,wc_status,wc_opcode,qp_state,recv_status,recv_opcode,data
RC,SEND,none,0,none,none,none,RTS,SUCCESS,RECV,ok
RC,SEND,SIGNALED,0,none,SUCCESS,SEND,RTS,SUCCESS,RECV,ok
RC,SEND,SIGNALED|INLINE,0,none,SUCCESS,SEND,RTS,SUCCESS,RECV,ok
RC,255,none,0,none,LOC_QP_OP_ERR,-,ERR,none,none,none
`

const wrPostResults = `qp_type,opcode,flags,setter,create,post,wc_status,wc_opcode,qp_state,recv_status,recv_opcode,data
RC,SEND,none,sge,0,0,none,none,RTS,SUCCESS,RECV,ok
RC,SEND,SIGNALED,sge,0,0,SUCCESS,SEND,RTS,SUCCESS,RECV,ok
RC,SEND,SIGNALED,inline,0,0,LOC_QP_OP_ERR,-,ERR,none,none,none
RC,SEND,SIGNALED|INLINE,inline,0,0,SUCCESS,SEND,RTS,SUCCESS,RECV,ok
`

// written writes a file of results and returns its path.
func written(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

func TestMeasured(t *testing.T) {
	tr := tree{root: t.TempDir()}
	c := measuredCmd{Provider: "rxe", Kernel: "6.1", Source: "Soft-RoCE, Linux 6.1.176, rdma-core 44.0",
		Files: []string{
			written(t, "post_send-6.1.csv", postSendResults), written(t, "wr_post-6.1.csv", wrPostResults), written(t,
				"create_qp-6.1.csv", "qp_type,create\nRC,0\n"),
		}}
	require.NoError(t, c.Run(tr))
	holds := func(name, want string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(tr.measured(), name))
		require.NoError(t, err)
		assert.Equal(t, "# Soft-RoCE, Linux 6.1.176, rdma-core 44.0\n"+want, string(text), name)
	}
	postSend := "qp_type,opcode,flags,post,wc_status,qp_state,data\nRC,SEND,none,0,none,RTS,ok\n" +
		"RC,SEND,SIGNALED,0,SUCCESS,RTS,ok\nRC,SEND,SIGNALED|INLINE,0,SUCCESS,RTS,ok\n"
	holds("rxe-6.1-post_send.csv", postSend)
	holds("rxe-6.1-wr_post.csv", "qp_type,opcode,flags,create,post,wc_status,qp_state,data\nRC,SEND,none,0,0,none,RTS,ok\nRC,SEND,SIGNALED,0,0,SUCCESS,RTS,ok\nRC,SEND,SIGNALED|INLINE,0,0,SUCCESS,RTS,ok\n")
	holds("rxe-6.1-create_qp.csv", "qp_type,create\nRC,0\n")

	again := c
	again.Source = ""
	require.NoError(t, again.Run(tr), "the same answers need no source")
	holds("rxe-6.1-post_send.csv", postSend)
	again.Files = []string{written(t, "post_send-6.1.csv",
		postSendResults+"UD,SEND,none,0,none,none,none,RTS,SUCCESS,RECV,ok\nUD,SEND,SIGNALED,0,none,SUCCESS,SEND,RTS,SUCCESS,RECV,ok\n")}
	assert.ErrorContains(t, again.Run(tr),
		"answers differ from headers/measured; describe the measured system with --source")
	holds("rxe-6.1-post_send.csv", postSend)
}

func TestMeasuredRejected(t *testing.T) {
	for name, c := range map[string]struct {
		file, text, want string
		bare             bool
	}{
		"other kernel": {file: "post_send-6.12.csv", text: postSendResults,
			want: "unexpected name for kernel 6.1"},
		"other table": {file: "modify_qp-6.1.csv", text: postSendResults, want: "unexpected name for kernel 6.1"},
		"no source": {file: "post_send-6.1.csv", text: postSendResults, bare: true,
			want: "new measurement; describe the measured system with --source"},
		"empty":          {file: "post_send-6.1.csv", want: "empty file"},
		"no CSV":         {file: "post_send-6.1.csv", text: "a,b\nc\n", want: "wrong number of fields"},
		"missing column": {file: "post_send-6.1.csv", text: "qp_type,opcode,flags\n", want: "no column post"},
		"half": {file: "wr_post-6.1.csv", want: "UC,SEND,SIGNALED is missing",
			text: wrPostResults + "UC,SEND,none,sge,0,0,none,none,RTS,SUCCESS,RECV,ok\n"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := tree{root: t.TempDir()}
			path := written(t, c.file, c.text)
			cmd := measuredCmd{Provider: "rxe", Kernel: "6.1", Source: "a device",
				Files: []string{written(t, "create_qp-6.1.csv", "qp_type,create\nRC,0\n"), path}}
			if c.bare {
				cmd.Source = ""
			}
			err := cmd.Run(tr)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, path)
			assert.NoDirExists(t, tr.measured(), "nothing is written")
		})
	}
}
