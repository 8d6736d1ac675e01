// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"cmp"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/mlx5"
)

// TestRejectedDevices checks the reasons for which the data path in Go rejects a device: completions of version 0, or
// requests with signatures.
func TestRejectedDevices(t *testing.T) {
	reasons := map[string]string{"GOVERBS_EMULATED_OLD": "its completions have version 0",
		"MLX5_QP_SIGNATURE":  "MLX5_QP_SIGNATURE enables signatures",
		"MLX5_SRQ_SIGNATURE": "MLX5_SRQ_SIGNATURE enables signatures"}
	values := map[string]string{"MLX5_SRQ_SIGNATURE": "0"} // libmlx5 checks only whether the variable is set
	if os.Getenv(envInside) == "" {
		for name := range reasons {
			again(t, emulated(t), pathC, name+"="+cmp.Or(values[name], "1"))
		}
		return
	}
	device := openDevice(t)
	_, err := mlx5.NewPath(device)
	assert.ErrorIs(t, err, syscall.EOPNOTSUPP)
	for name, reason := range reasons {
		if os.Getenv(name) != "" {
			assert.ErrorContains(t, err, Device+": no data path in Go: "+reason, name)
			return
		}
	}
	t.Fatal("no reason is set")
}

// TestRejectedQueues checks the reasons for which the data path in Go rejects a queue: its type, a related queue that C
// polls or fills, or completion fields that it does not read. libmlx5 supports all of these queues.
func TestRejectedQueues(t *testing.T) {
	if !inside(t) {
		return
	}
	device := openDevice(t)
	native := os.Getenv(envInside) == pathGo
	rejected := func(reason string, err error) {
		t.Helper()
		if native {
			assert.ErrorContains(t, err, reason)
		} else {
			assert.NoError(t, err)
		}
	}
	pd, err := device.AllocPD()
	keep(t, pd, err)
	domain, err := device.OpenXRCD(&ibv.XRCDInitAttr{FD: -1,
		CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS, Oflags: syscall.O_CREAT})
	keep(t, domain, err)
	cq, err := device.CreateCQ(16, nil, 0)
	keep(t, cq, err)
	extended := &ibv.SRQInitAttrEx{Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, SRQType: ibv.SRQT_XRC, PD: pd.Ptr(),
		CQ: cq.Ptr(), XRCD: domain.Ptr(),
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_CQ | ibv.SRQ_INIT_ATTR_XRCD}
	srq, err := device.CreateSRQEx(extended, rdma.QueueOptions{})
	rejected("only basic shared receive queues", err)
	if err == nil {
		require.NoError(t, srq.Close())
	}

	device.UsePath(nil) // create the next queue in C
	inC, err := device.CreateCQ(16, nil, 0)
	keep(t, inC, err)
	options := rdma.QueueOptions{}
	if native {
		options.Path, err = mlx5.NewPath(device)
		require.NoError(t, err)
	}
	qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: inC.Ptr(), RecvCQ: inC.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}, options)
	rejected("create both with the same Path", err)
	if err == nil {
		require.NoError(t, qp.Close())
	}

	for _, value := range []ibv.CreateCQWCFlags{ibv.WC_EX_WITH_COMPLETION_TIMESTAMP, ibv.WC_EX_WITH_CVLAN,
		ibv.WC_EX_WITH_FLOW_TAG, ibv.WC_EX_WITH_TM_INFO} {
		values, err := device.CreateCQEx(&ibv.CQInitAttrEx{CQE: 4, WCFlags: ibv.WC_STANDARD_FLAGS | value},
			options)
		keep(t, values, err)
		program, err := values.NewPollProgram(1)
		rejected(value.String(), err)
		if err == nil {
			require.NoError(t, program.Close())
		}
	}
}

// TestReleaseOfLibrary checks that the data path in Go rejects a libmlx5 older than the tested releases, with an error
// that lists the tested ones.
func TestReleaseOfLibrary(t *testing.T) {
	const rejected = Device + ": no data path in Go: its libmlx5 of rdma-core 43.2 is older than the oldest " +
		"compared release, 44.0"
	libraries := []struct {
		name, release string
		shown         bool
		reason        string
	}{
		{"libmlx5.so.1.23.43.2", "43.2", false, rejected}, {"libmlx5.so.1.24.44.0", "44.0", true, ""},
		{"libmlx5.so.1.99.99.0", "99.0", false, ""}, {"libmlx5.so.1", "", false, ""},
	}
	const envName = "GOVERBS_PROVIDER_NAME"
	if os.Getenv(envInside) == "" {
		e := emulated(t)
		driver, err := filepath.Glob(filepath.Join(e.libraries.dir(), "libibverbs", "libmlx5-rdmav*.so"))
		require.NoError(t, err)
		require.NotEmpty(t, driver)
		for _, l := range libraries {
			to := t.TempDir()
			text, err := os.ReadFile(filepath.Join(e.libraries.dir(), "libmlx5.so.1"))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(to, l.name), text, 0o755))
			require.NoError(t, os.Symlink(l.name, filepath.Join(to, filepath.Base(driver[0]))))
			again(t, e, pathC, "RDMAV_DRIVERS="+filepath.Join(to, "libmlx5"), envName+"="+l.name)
		}
		return
	}
	device := openDevice(t)
	for _, l := range libraries {
		if l.name != os.Getenv(envName) {
			continue
		}
		release, shown := mlx5.Release(device)
		assert.Equal(t, []any{l.release, l.shown}, []any{release, shown})
		_, err := mlx5.NewPath(device)
		if l.reason == "" {
			assert.NoError(t, err)
		} else {
			assert.ErrorContains(t, err, l.reason)
			assert.ErrorIs(t, err, syscall.EOPNOTSUPP)
		}
	}
	require.NoError(t, device.Close())
	release, shown := mlx5.Release(device)
	assert.Equal(t, []any{"", false}, []any{release, shown})
}
