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
	"github.com/goverbs/goverbs/conformance/vm/rig"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// control is a call of a control verb: one that works, or one that fails in a way that the verb's page tells or that
// its arguments allow.
type control struct {
	verb string
	what string // works, or what is wrong
	call func(r *rig.Rig) error
	why  string // where call is nil: why it cannot be provoked
}

const works = "works"

var controls = slices.Concat(deviceControls, memoryControls, bufferControls, windowControls, queueControls,
	receiveControls, datagramControls)

// TestControl measures each call on objects of its own; those that cannot be provoked are listed with the reason.
func TestControl(t *testing.T) {
	r := rig.Open(t)
	table := results.Table{Columns: []string{"verb", "case", "answer", "not_provoked"}, Keys: 2}
	for _, c := range controls {
		if c.call == nil {
			table.Rows = append(table.Rows, []string{c.verb, c.what, "-", c.why})
			continue
		}
		t.Run(c.verb+"/"+c.what, func(t *testing.T) {
			err := c.call(r.For(t))
			came := answer(err)
			if c.what == works && came != absent {
				require.NoError(t, err)
			}
			table.Rows = append(table.Rows, []string{c.verb, c.what, came, "-"})
		})
	}
	check(t, "control", table)
}

// elsewhere are the functions that other tests call, or that enter neither the provider nor the kernel.
var elsewhere = map[string]string{
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
	"verbs_get_ctx":               "what extended verbs go through",
	"ibv_inc_rkey":                "rig.Bind; computes",
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

// families are functions that one test calls all of.
var families = map[string]string{
	"ibv_wr_":      "TestWRPost",
	"ibv_wc_read_": "TestExtendedCompletions",
}

// TestEveryVerbIsCalled: no function of libibverbs is forgotten. It reads the sources, on the host.
func TestEveryVerbIsCalled(t *testing.T) {
	sources, err := filepath.Glob("../../../generated/libibverbs/*.go")
	require.NoError(t, err)
	if sources == nil {
		t.Skip("the guest has no sources: this is a test for the host")
	}
	called := maps.Clone(elsewhere)
	add := func(verb, by string) {
		assert.NotContains(t, elsewhere, verb, "is in %s too", by)
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
		assert.Equal(t, c.call == nil, c.why != "", "%s: %s: either it is called or it says why not", c.verb, c.what)
	}
	for verb := range succeeds {
		assert.True(t, succeeds[verb] || verb == "ibv_export_buf_dmabuf_fd" || called[verb] == "unsupported",
			"%s: no call that works", verb)
		assert.True(t, fails[verb], "%s: no failure, not even one that cannot be provoked", verb)
	}
	for verb, of := range unmade {
		assert.Equal(t, "unsupported", called[of], "%s needs what %s makes", verb, of)
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
		assert.True(t, known[verb], "%s is no function of libibverbs", verb)
	}
}

// prototype is the line about C above a generated function.
var prototype = regexp.MustCompile(`(?m)^// C: [^(\n]*?(\w+)\(.*\.h\)$`)

// absent is the answer of a function that the library of the guest does not have.
const absent = "not in the library"

func answer(err error) string {
	var lacks *runtime.NotSupportedError
	if errors.As(err, &lacks) {
		return absent
	}
	return errnoName(err)
}

// failed is an answer that is no errno: the status of a completion, or what did not hold.
func failed(what string) error { return errors.New(what) }

// made passes on the failure to make an object, or destroys what was made.
func made[T any](r *rig.Rig, destroy func(*T) error) func(*T, error) error {
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
