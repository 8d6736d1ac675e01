// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// faultVariable is the name of the fault that this process runs.
const faultVariable = "GOVERBS_TRACE_TEST_FAULT"

// TestFaultProgram runs a program with a fault, as a process.
func TestFaultProgram(t *testing.T) {
	all := slices.Concat(documented, faultless, faults, []fault{highRegion})
	for _, f := range rejectedPosts {
		all = append(all, f.fault)
	}
	for _, f := range all {
		if f.name == os.Getenv(faultVariable) {
			f.run(t)
			return
		}
	}
	if os.Getenv(faultVariable) != "" {
		t.Fatal("unknown fault")
	}
}

// traced runs the program of a fault and returns its trace.
func traced(t *testing.T, name string) *Trace {
	t.Helper()
	file := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command(os.Args[0], "-test.run", "^TestFaultProgram$")
	cmd.Env = append(os.Environ(), faultVariable+"="+name, "GOVERBS_TRACE="+file)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", name, out)
	trace, err := Read(file)
	require.NoError(t, err, name)
	return trace
}

// guest is the name of the guest's kernel, or "".
func guest() string { return os.Getenv("GOVERBS_GUEST") }

// faultless are programs without errors.
var faultless = []fault{{"stream closed normally", "", func(t *testing.T) {
	config, at := stream.Config{}, net.JoinHostPort(os.Getenv("GOVERBS_ADDRESS"), "4713")
	if guest() == "" {
		config.Backend, at = must(soft.New(soft.Options{}))(t), "127.0.0.1:4713"
	}
	l := must((&stream.ListenConfig{Config: config}).Listen(t.Context(), at))(t)
	var other sync.WaitGroup
	other.Go(func() {
		c, err := l.Accept()
		if assert.NoError(t, err) {
			_, err = io.Copy(c, c)
			assert.NoError(t, err)
			assert.NoError(t, c.Close())
		}
	})
	c := must((&stream.Dialer{Config: config}).Dial(t.Context(), at))(t)
	_, err := c.Write([]byte("hello"))
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	require.Equal(t, "hello", string(must(io.ReadAll(c))(t)))
	other.Wait()
	require.NoError(t, c.Close())
	require.NoError(t, l.Close())
}}}

// TestQuiet checks that programs without errors yield no findings.
func TestQuiet(t *testing.T) {
	for _, f := range faultless {
		found := Explain(traced(t, f.name))
		var text bytes.Buffer
		require.NoError(t, found.WriteText(&text))
		assert.Empty(t, found, "%s: %s", f.name, &text)
	}
}

// TestExplain checks that for at least 90 % of the faults, the first finding is the cause.
func TestExplain(t *testing.T) {
	if guest() != "" {
		t.Skip("tests only the software device")
	}
	right := 0
	for _, f := range faults {
		found := Explain(traced(t, f.name))
		if len(found) > 0 && found[0].Cause == f.cause {
			right++
			continue
		}
		var text bytes.Buffer
		require.NoError(t, found.WriteText(&text))
		t.Logf("%s: %s not found: %s", f.name, f.cause, &text)
	}
	t.Logf("causes found: %d of %d, %d %%", right, len(faults), right*100/len(faults))
	assert.GreaterOrEqual(t, len(faults), 30)
	assert.GreaterOrEqual(t, right*100, len(faults)*90)
}

// TestEvidence checks that a finding includes the counters of its program's device.
func TestEvidence(t *testing.T) {
	if guest() != "" {
		t.Skip("tests only the software device")
	}
	found := Explain(traced(t, "nonexistent remote key"))
	require.NotEmpty(t, found)
	assert.Equal(t, "req_remote_access_errors 1", found[0].Counts)
	found = Explain(traced(t, "link down"), traced(t, "nonexistent remote key"))
	counts := map[string]string{}
	for _, f := range found {
		counts[f.Cause] += f.Counts
	}
	assert.NotContains(t, counts["path-lost"], "access")
	assert.Contains(t, counts["path-lost"], "retry_exceeded_err 1")
}

// TestForms checks the output formats.
func TestForms(t *testing.T) {
	trace := traced(t, "no receive")
	var text, lines, chrome bytes.Buffer
	require.NoError(t, trace.WriteText(&text))
	assert.Contains(t, text.String(), "ibv_post_send QP 0x")
	assert.Contains(t, text.String(), "RNR_RETRY_EXC_ERR")
	assert.Contains(t, text.String(), "state=RTR")
	require.NoError(t, trace.WriteLines(&lines))
	again, err := parse(&lines)
	require.NoError(t, err)
	require.Len(t, again.Events, len(trace.Events))
	for i, e := range trace.Events {
		assert.Equal(t, e.String(), again.Events[i].String())
	}
	require.NoError(t, trace.WriteChrome(&chrome))
	var page struct{ TraceEvents []map[string]any }
	require.NoError(t, json.Unmarshal(chrome.Bytes(), &page))
	assert.Greater(t, len(page.TraceEvents), len(trace.Events))
}

// TestOtherProcess checks queue pairs on the soft0 of two processes, where the first ones have the same number. It also
// checks the trace of one process alone.
func TestOtherProcess(t *testing.T) {
	process := func(name string, local, peer uint32) *Trace {
		num := uint32(0x11)
		return &Trace{Name: name, Events: []*Event{
			{T: 1, Verb: "ibv_create_qp", Device: "soft0", Type: "RC", QP: &num, All: 1},
			{T: 2, Verb: "ibv_modify_qp", QP: &num, State: "RTS", DestQP: &num, SQPSN: &local, RQPSN: &peer},
			{T: 3, Verb: "ibv_post_send", QP: &num, WRs: []WR{{ID: 7, Op: "RDMA_READ"}}},
			{T: 4, Verb: "ibv_poll_cq", WCs: []Completion{{ID: 7, Status: "RETRY_EXC_ERR", QP: num}}},
		}}
	}
	a, b := process("a", 100, 200), process("b", 200, 100)
	for _, traces := range [][]*Trace{{a, b}, {a}} {
		found := Explain(traces...)
		require.Len(t, found, len(traces))
		for _, f := range found {
			assert.Equal(t, "other-process", f.Cause)
			assert.Contains(t, f.Fix, "soft@ADDRESS")
		}
	}
}
