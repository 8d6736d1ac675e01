// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/results"
	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// control is a call of a control verb that succeeds, or that fails in a way that the manual page documents or that its
// arguments permit.
type control struct {
	verb string
	what string // "works", or the fault
	call func(r *testbed.Testbed) error
	why  string // if call is nil: why the failure cannot be provoked
}

const works = "works"

var controls = slices.Concat(deviceControls, memoryControls, bufferControls, windowControls, queueControls,
	receiveControls, datagramControls)

// TestControl measures each call on separate objects. Failures that cannot be provoked are listed with the reason.
func TestControl(t *testing.T) {
	r := testbed.Open(t)
	table := results.Table{Columns: []string{"verb", "case", "answer", "not_provoked"}, Keys: 2}
	for _, c := range controls {
		if c.call == nil {
			table.Rows = append(table.Rows, []string{c.verb, c.what, "-", c.why})
			continue
		}
		t.Run(c.verb+"/"+c.what, func(t *testing.T) {
			err := c.call(r.For(t))
			got := answer(err)
			if c.what == works && got != absent {
				require.NoError(t, err)
			}
			table.Rows = append(table.Rows, []string{c.verb, c.what, got, "-"})
		})
	}
	check(t, "control", table)
}

// calledElsewhere lists functions that other tests call, or that call neither the provider nor the kernel.
var calledElsewhere = map[string]string{
	"ibv_post_send":               "TestPostSend, TestMistakes",
	"ibv_post_recv":               "TestRecvInStates",
	"ibv_post_srq_recv":           "TestSharedReceives",
	"ibv_poll_cq":                 "every test",
	"ibv_get_async_event":         "TestEvents",
	"ibv_ack_async_event":         "TestEvents",
	"ibv_start_poll":              "TestExtendedCompletions",
	"ibv_next_poll":               "TestExtendedCompletions",
	"ibv_end_poll":                "TestExtendedCompletions",
	"ibv_cq_ex_to_cq":             "TestExtendedCompletions",
	"ibv_qp_to_qp_ex":             "TestWRPost",
	"verbs_get_ctx":               "used by all extended verbs",
	"ibv_inc_rkey":                "testbed.Bind; computes",
	"ibv_flow_label_to_udp_sport": "computes",
	"ibv_is_qpt_supported":        "computes",
	"ibv_wc_status_str":           "a name",
	"ibv_wr_opcode_str":           "a name",
	"ibv_event_type_str":          "a name",
	"ibv_node_type_str":           "a name",
	"ibv_port_state_str":          "a name",
	"ibv_rate_to_mult":            "computes",
	"mult_to_ibv_rate":            "computes",
	"ibv_rate_to_mbps":            "computes",
	"mbps_to_ibv_rate":            "computes",
}

// families lists groups of functions, each with a test that calls all of them.
var families = map[string]string{
	"ibv_wr_":      "TestWRPost",
	"ibv_wc_read_": "TestExtendedCompletions",
}

// TestEveryVerbIsCalled checks that every function of libibverbs is covered. It reads the sources on the host.
func TestEveryVerbIsCalled(t *testing.T) {
	sources, err := filepath.Glob("../../../generated/libibverbs/*.go")
	require.NoError(t, err)
	if sources == nil {
		t.Skip("needs the sources, which guests do not have")
	}
	called := maps.Clone(calledElsewhere)
	add := func(verb, by string) {
		assert.NotContains(t, calledElsewhere, verb, "is in %s too", by)
		called[verb] = by
	}
	for _, v := range unsupported {
		verb, _, _ := strings.Cut(v.name, " ")
		called[verb] = "unsupported"
	}
	fails, succeeds := map[string]bool{}, map[string]bool{}
	for _, c := range controls {
		if called[c.verb] != "unsupported" {
			add(c.verb, "controls")
		}
		fails[c.verb] = fails[c.verb] || c.what != works
		succeeds[c.verb] = succeeds[c.verb] || c.what == works
		assert.Equal(t, c.call == nil, c.why != "", "%s: %s: needs either a call or a reason", c.verb, c.what)
	}
	for verb := range succeeds {
		assert.True(t, succeeds[verb] || verb == "ibv_export_buf_dmabuf_fd" || called[verb] == "unsupported",
			"%s: no successful call", verb)
		assert.True(t, fails[verb], "%s: no failure, not even one listed as impossible", verb)
	}
	for verb, of := range creators {
		assert.Equal(t, "unsupported", called[of], "%s needs the object of %s", verb, of)
		add(verb, "unmade")
	}
	known := map[string]bool{}
	for _, source := range sources {
		text, err := os.ReadFile(source)
		require.NoError(t, err)
		for _, match := range prototype.FindAllSubmatch(text, -1) {
			verb := string(match[1])
			known[verb] = true
			family := slices.ContainsFunc(slices.Collect(maps.Keys(families)),
				func(prefix string) bool { return strings.HasPrefix(verb, prefix) })
			assert.True(t, family || called[verb] != "" || called[strings.TrimLeft(verb, "_")] != "",
				"%s is called by no test", verb)
		}
	}
	assert.Greater(t, len(known), 150)
	for verb := range called {
		assert.True(t, known[verb], "%s is not a function of libibverbs", verb)
	}
}

// prototype matches the comment line with the C prototype of a generated function.
var prototype = regexp.MustCompile(`(?m)^// C: [^(\n]*?(\w+)\(.*\.h\)$`)

// absent is the result for a function that the guest's library lacks.
const absent = "not in the library"

func answer(err error) string {
	var lacks *runtime.NotSupportedError
	if errors.As(err, &lacks) {
		return absent
	}
	return errnoName(err)
}

// failed returns a failure without an errno: a completion status or an unmet expectation.
func failed(name string) error { return errors.New(name) }

// created destroys a created object, or returns the error of its creation.
func created[T any](r *testbed.Testbed, destroy func(*T) error) func(*T, error) error {
	return func(object *T, err error) error {
		if err == nil {
			r.Check(destroy(object))
		}
		return err
	}
}

func status(wc ibv.WC) error {
	if wc.Status == ibv.WC_SUCCESS {
		return nil
	}
	return failed(trim(wc.Status.String()))
}
