// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/runtime"
)

// TestMissing: functions that a driver lacks report ErrNotSupported, for which package rdma names rdma-core, before the
// kernel is asked.
func TestMissing(t *testing.T) {
	for _, id := range []uapi.RDMADriverID{uapi.RDMA_DRIVER_RXE, uapi.RDMA_DRIVER_SIW} {
		k := newFake()
		k.driver = id
		b := newBackend(t, k)
		var n int32
		list, err := verbs.From{Backend: b}.GetDeviceList(&n)
		require.NoError(t, err)
		c, err := verbs.OpenDevice(list.Deref())
		verbs.FreeDeviceList(list)
		require.NoError(t, err)
		for name, try := range map[string]func() error{
			"ibv_open_xrcd": func() error {
				_, err := verbs.OpenXRCD(c, &ibv.XRCDInitAttr{FD: -1, Oflags: syscall.O_CREAT,
					CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS})
				return err
			},
			"ibv_open_qp": func() error {
				_, err := verbs.OpenQP(c, &ibv.QPOpenAttr{QPNum: 1, QPType: ibv.QPT_XRC_RECV,
					CompMask: ibv.QP_OPEN_ATTR_NUM | ibv.QP_OPEN_ATTR_XRCD | ibv.QP_OPEN_ATTR_TYPE})
				return err
			},
			"ibv_alloc_dm":        func() error { _, err := verbs.AllocDM(c, &ibv.AllocDMAttr{Length: 64}); return err },
			"ibv_create_counters": func() error { _, err := verbs.CreateCounters(c, &ibv.CountersInitAttr{}); return err },
		} {
			assert.ErrorIs(t, try(), runtime.ErrNotSupported, "%v: %s", id, name)
		}
		require.NoError(t, verbs.CloseDevice(c))
		released(t, b, k)
	}
}
