// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// Drivers return ENOTSUPP, an internal errno of the kernel that neither Go nor the C library names.
func TestKernelENOTSUPP(t *testing.T) {
	f, d, _ := fakePD(t)
	const enotsupp = syscall.Errno(524)
	f.Fails["create_counters"] = enotsupp
	_, err := d.CreateCounters(nil)
	assert.EqualError(t, err,
		"ibv_create_counters: fake: not supported by the kernel or its driver (ENOTSUPP, errno 524)")
	post := &PostError{Verb: "ibv_post_send", QPNum: 1, QPType: ibv.QPT_RC, Index: -1, Errno: enotsupp}
	assert.EqualError(t, post, "ibv_post_send: QP 0x1 (RC): the failed WR is unknown; any may have been posted: "+
		"not supported by the kernel or its driver (ENOTSUPP, errno 524)")
	for _, err := range []error{err, post, &VerbError{Verb: "ibv_query_qp", Errno: enotsupp}} {
		assert.ErrorIs(t, err, runtime.ErrNotSupported)
		assert.ErrorIs(t, err, errors.ErrUnsupported)
		assert.ErrorIs(t, err, enotsupp)
		assert.NotErrorIs(t, err, syscall.EINVAL)
	}
	assert.NotErrorIs(t, &VerbError{Errno: syscall.EINVAL}, runtime.ErrNotSupported)
}

func TestErrnoReasonIsFallback(t *testing.T) {
	f, d, pd := fakePD(t)
	f.Fails["ibv_reg_mr_iova"], f.Fails["ibv_reg_mr_iova2"] = syscall.ENOMEM, syscall.ENOMEM
	_, err := pd.RegAddress(0x1000, 64, 0, ibv.ACCESS_LOCAL_WRITE)
	assert.ErrorIs(t, err, syscall.ENOMEM)
	assert.EqualError(t, err,
		"ibv_reg_mr_iova: PD 0 on fake: the process may have reached its limit of locked memory (RLIMIT_MEMLOCK, "+
			"ulimit -l), or the device has no room for more regions: cannot allocate memory")
	f.Fails["create_counters"] = syscall.EMFILE
	_, err = d.CreateCounters(nil)
	assert.EqualError(t, err, "ibv_create_counters: fake: too many open files", "an errno without a known reason")

	call := &runtime.CallError{Function: "ibv_create_cq", Errno: syscall.EINVAL}
	assert.ErrorContains(t, explain("", "CQ 1", "a better one", call), "CQ 1: a better one: invalid argument")
	nearer := &VerbError{Reason: "nearer", Errno: syscall.EINVAL, Err: call}
	assert.EqualError(t, wrap("ibv_create_cq", "mlx5_0", nearer), "ibv_create_cq: mlx5_0: nearer: invalid argument")
}
