// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/rdmatest"
	"github.com/goverbs/goverbs/rdma/soft"
)

// asLate is set in the environment of the processes of TestLate.
const asLate = "GOVERBS_TEST_LATE"

// TestLate runs TestPolledOnce in processes of its own: a program that polls once after a post gets its completion, but
// not where messages take time.
func TestLate(t *testing.T) {
	own, err := os.Executable()
	require.NoError(t, err)
	for _, c := range []struct{ late, want string }{
		{"", "at once: 1, later: 0"},
		{"20ms", "at once: 0, later: 1"},
		{"1 s", `GOVERBS_SOFT_LATE="1 s" is not the time that a message takes, like 50us: invalid argument`},
		{"-1s", `GOVERBS_SOFT_LATE="-1s" is not the time that a message takes`},
	} {
		cmd := exec.Command(own, "-test.run=^TestPolledOnce$", "-test.v")
		cmd.Env = append(os.Environ(), asLate+"=1", "GOVERBS_SOFT_WIRE=", "GOVERBS_SOFT_LATE="+c.late)
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), c.want)
	}
}

// TestPolledOnce is the program of TestLate.
func TestPolledOnce(t *testing.T) {
	if os.Getenv(asLate) == "" {
		t.Skip("belongs into a process of its own, which TestLate starts")
	}
	if _, err := soft.Default(); err != nil {
		t.Log(err)
		return
	}
	here, there := rdmatest.PairOn(t, ibv.QPT_RC, "soft0", "soft1")
	batch, err := rdma.NewSendBatch(1, 1, 0)
	require.NoError(t, err)
	defer batch.Close()
	batch.Write(7, there.MR.Address(), there.MR.RKey()).Add(here.MR.SGE(0, 64)).Signaled()
	_, err = here.QP.PostSend(batch)
	require.NoError(t, err)
	wcs := make([]ibv.WC, 1)
	once, err := here.CQ.Poll(wcs)
	require.NoError(t, err)
	later := 0
	if once == 0 {
		later, err = here.CQ.Wait(t.Context(), wcs)
		require.NoError(t, err)
	}
	assert.Equal(t, ibv.WC_SUCCESS, wcs[0].Status)
	t.Logf("at once: %d, later: %d", once, later)
}
