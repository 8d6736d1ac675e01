// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// TestMain runs the tests on the software device outside a guest.
func TestMain(m *testing.M) {
	testbed.OrSoft()
	if testbed.IWARP() { // the connection manager keeps its device open
		testbed.Main(m, "ctx")
		return
	}
	testbed.Main(m)
}

// TestLeaks checks that the kernel's counts follow creation and destruction, and that a package with leaks fails even
// if all its tests passed.
func TestLeaks(t *testing.T) {
	r := testbed.Open(t)
	before, err := testbed.Resources()
	require.NoError(t, err)
	for _, kind := range []string{"pd", "cq", "qp", "mr", "ctx"} {
		assert.Contains(t, before, kind)
	}
	pd, err := verbs.AllocPD(r.Context)
	require.NoError(t, err)
	cq, err := verbs.CreateCQ(r.Context, 4, 0, nil, 0)
	require.NoError(t, err)
	qp, err := verbs.CreateQP(pd, &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq),
		Cap: testbed.Caps})
	require.NoError(t, err)
	left, err := testbed.Leaks(before)
	require.NoError(t, err)
	assert.Equal(t, "1 cq, 1 pd, 1 qp", left)
	require.NoError(t, verbs.DestroyQP(qp))
	require.NoError(t, verbs.DestroyCQ(cq))
	require.NoError(t, verbs.DeallocPD(pd))
	left, err = testbed.Leaks(before)
	require.NoError(t, err)
	assert.Empty(t, left)

	again := exec.Command(os.Args[0], "-test.run=^TestDeliberateLeak$")
	again.Env = append(os.Environ(), "GOVERBS_LEAK=1")
	out, err := again.CombinedOutput()
	assert.ErrorContains(t, err, "exit status 1", "%s", out)
	assert.Regexp(t, `PASS\ntestbed: the tests leaked 1 ctx, 1 pd; no test failed, remaining goroutines:\ngoroutine `,
		string(out))
}

// TestDeliberateLeak leaves a device open for TestLeaks.
func TestDeliberateLeak(t *testing.T) {
	testbed.Kernel(t)
	if os.Getenv("GOVERBS_LEAK") == "" {
		t.Skip("leaves a device open, for TestLeaks")
	}
	context := testbed.OpenDevice(t)
	_, err := verbs.AllocPD(context)
	require.NoError(t, err)
}
