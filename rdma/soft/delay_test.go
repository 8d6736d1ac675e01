// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/rdmatest"
	"github.com/goverbs/goverbs/rdma/soft"
)

// asDelayed is set in the environment of the child processes of TestDelay.
const asDelayed = "GOVERBS_TEST_LATE"

// TestDelay runs TestMessageTime in child processes: a message arrives during the post, or after the configured delay.
func TestDelay(t *testing.T) {
	executable, err := os.Executable()
	require.NoError(t, err)
	for _, c := range []struct{ late, want string }{
		{"", "arrived at once"},
		{"20ms", "arrived after 20ms"},
		{"1 s", `GOVERBS_SOFT_LATE="1 s" is not a valid delay; use a duration such as 50us: invalid argument`},
		{"-1s", `GOVERBS_SOFT_LATE="-1s" is not a valid delay`},
	} {
		cmd := exec.Command(executable, "-test.run=^TestMessageTime$", "-test.v")
		cmd.Env = append(os.Environ(), asDelayed+"=1", "GOVERBS_SOFT_WIRE=", "GOVERBS_SOFT_LATE="+c.late)
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), c.want)
	}
}

// TestMessageTime is the child process of TestDelay.
func TestMessageTime(t *testing.T) {
	if os.Getenv(asDelayed) == "" {
		t.Skip("runs only as a child process of TestDelay")
	}
	if _, err := soft.Default(); err != nil {
		t.Log(err)
		return
	}
	local, remote := rdmatest.PairOn(t, ibv.QPT_RC, "soft0", "soft1")
	batch, err := rdma.NewSendBatch(1, 1, 0)
	require.NoError(t, err)
	defer batch.Close()
	batch.Write(7, remote.MR.Address(), remote.MR.RKey()).Add(local.MR.SGE(0, 64)).Signaled()
	start := time.Now()
	_, err = local.QP.PostSend(batch)
	require.NoError(t, err)
	wcs := make([]ibv.WC, 1)
	n, err := local.CQ.Poll(wcs)
	require.NoError(t, err)
	delay, _ := time.ParseDuration(os.Getenv("GOVERBS_SOFT_LATE"))
	if n == 1 && delay == 0 {
		t.Log("arrived at once")
		return
	}
	if n == 0 {
		_, err = local.CQ.Wait(t.Context(), wcs)
		require.NoError(t, err)
	}
	assert.Equal(t, ibv.WC_SUCCESS, wcs[0].Status)
	if time.Since(start) >= delay {
		t.Logf("arrived after %v", delay)
	}
}
