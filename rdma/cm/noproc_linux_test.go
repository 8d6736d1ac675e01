// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestBindWithoutProc checks that binding to soft@ADDRESS without /proc, as in a chroot, is an error that names /proc.
func TestBindWithoutProc(t *testing.T) {
	const variable = "GOVERBS_TEST_WITHOUT_PROC"
	if os.Getenv(variable) == "" {
		const hide = "mount -t tmpfs none /proc"
		if out, err := exec.Command("unshare", "--mount", "--map-root-user", "sh", "-c", hide).CombinedOutput(); err != nil {
			t.Skipf("cannot hide /proc in a namespace of its own: %v: %s", err, out)
		}
		cmd := exec.Command("unshare", "--mount", "--map-root-user", "sh", "-c", hide+` && exec "$@"`, "sh", os.Args[0],
			"-test.run=^TestBindWithoutProc$")
		cmd.Env = append(os.Environ(), variable+"=1")
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, "%s", out)
		return
	}
	fabric, _, err := soft.Named("soft@127.77.3.1")
	require.NoError(t, err)
	id, err := CreateIDOn(fabric, rdmacm.PS_TCP)
	require.NoError(t, err)
	defer id.Close()
	err = id.Bind(netip.MustParseAddrPort("127.77.3.1:7471"))
	assert.ErrorContains(t, err, "it needs /proc; mount it")
}
