// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libefa"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// efaUsers returns users of libefa and of package native over an emulated EFA adapter, if this is the process of a test
// that runs over adapters of an older and a newer kind. The device only executes commands if still is set.
func efaUsers(t *testing.T, still bool) (users [2]*user, inside bool) {
	t.Helper()
	if os.Getenv(envInside) != "" {
		return [2]*user{newUser(t, nil), newUser(t, backend(t))}, true
	}
	for _, more := range []string{"0", longNumbers} {
		env := []string{envCapabilities + "=" + more}
		if still {
			env = append(env, "GOVERBS_EMULATED_STILL=1")
		}
		again(t, emulated(t).As(EFA), pathNative, env...)
	}
	return users, false
}

// efaQP creates a queue pair by ibv_create_qp, or one of SRD.
func (u *user) efaQP(kind ibv.QPType, cap ibv.QPCap, own efadv.QPInitAttr) (*ibv.QP, ibv.QPCap, error) {
	if kind == ibv.QPT_UD {
		a := ibv.QPInitAttr{SendCQ: ibv.PtrTo(u.cq), RecvCQ: ibv.PtrTo(u.cq), QPType: kind, Cap: cap}
		qp, err := verbs.CreateQP(u.pd, &a)
		return qp, a.Cap, err
	}
	x := ibv.QPInitAttrEx{SendCQ: ibv.PtrTo(u.cq), RecvCQ: ibv.PtrTo(u.cq), QPType: kind, Cap: cap, PD: ibv.PtrTo(u.pd),
		CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, SendOpsFlags: ibv.QP_EX_WITH_SEND |
			ibv.QP_EX_WITH_SEND_WITH_IMM | ibv.QP_EX_WITH_RDMA_READ | ibv.QP_EX_WITH_RDMA_WRITE |
			ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM}
	qp, err := libefa.CreateQPEx(u.context, &x, &own, uint32(unsafe.Sizeof(own)))
	return qp, x.Cap, err
}

func (u *user) efaQueues(qp *ibv.QP) (s, r efadv.WQAttr) {
	u.t.Helper()
	require.NoError(u.t, libefa.QueryQPWQs(qp, &s, &r, uint32(unsafe.Sizeof(s))))
	return s, r
}

// efaSizes describes the queues of a queue pair without their addresses.
func (u *user) efaSizes(kind ibv.QPType, cap ibv.QPCap, flags efadv.QPFlags) string {
	qp, got, err := u.efaQP(kind, cap, efadv.QPInitAttr{Flags: flags})
	if err != nil {
		return "none"
	}
	s, r := u.efaQueues(qp)
	s.Buffer, s.Doorbell, r.Buffer, r.Doorbell = 0, 0, 0, 0
	require.NoError(u.t, verbs.DestroyQP(qp))
	return fmt.Sprintf("%+v\n%+v\n%+v", got, s, r)
}

// TestNativeEFASizes compares capacities and sizes of queues that package native and libefa create.
func TestNativeEFASizes(t *testing.T) {
	users, inside := efaUsers(t, false)
	if !inside {
		return
	}
	r := rand.New(rand.NewPCG(1, 2))
	some := 0
	for range 2000 {
		kind := []ibv.QPType{ibv.QPT_UD, ibv.QPT_DRIVER}[r.IntN(2)]
		cap := ibv.QPCap{MaxSendWR: r.Uint32N(1 << r.IntN(15)), MaxRecvWR: r.Uint32N(1 << r.IntN(17)),
			MaxSendSGE: r.Uint32N(4), MaxRecvSGE: 1 + r.Uint32N(5), MaxInlineData: r.Uint32N(1 << r.IntN(8))}
		flags := efadv.QPFlags(r.UintN(1 << r.IntN(4)))
		c := users[0].efaSizes(kind, cap, flags)
		require.Equal(t, c, users[1].efaSizes(kind, cap, flags), "%v %+v %v", kind, cap, flags)
		if c != "none" {
			some++
		}
	}
	assert.Greater(t, some, 300)
}

// nativeEFATests are tests of EFA that also run over package native.
var nativeEFATests = []string{"TestEFAQueries", "TestEFADatagrams", "TestSRD", "TestSRDOrder", "TestSRDFailures",
	"TestUnsolicited", "TestSourceGID", "TestEFAExtendedQueues", "TestEFADrain", "TestEFALimits", "TestEFAWide", "TestEFADestroyedQueuePair"}

// TestNativeEFA runs them.
func TestNativeEFA(t *testing.T) {
	e := emulated(t)
	program := testProgram(t, e, ".")
	for _, env := range []string{envCapabilities + "=0", envCapabilities + "=" + longNumbers, "GOVERBS_EFA_SUB_QUEUES=1"} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		cmd := e.As(EFA).Command(ctx, program, "-test.v", "-test.timeout=100s",
			"-test.run=^("+strings.Join(nativeEFATests, "|")+")$")
		cmd.Env = append(cmd.Env, envInside+"="+pathNative, envRelease+"="+e.libraries.Release, env)
		out, err := cmd.CombinedOutput()
		cancel()
		require.NoError(t, err, "%s: %s", env, out)
		for _, test := range nativeEFATests {
			assert.Contains(t, string(out), "--- PASS: "+test+" (", env)
		}
	}
}

// deviceOf returns what generic verbs and libefa's report of the device.
func (u *user) deviceOf() string {
	var device ibv.DeviceAttr
	require.NoError(u.t, verbs.QueryDevice(u.context, &device))
	var ex ibv.DeviceAttrEx
	require.NoError(u.t, verbs.QueryDeviceEx(u.context, nil, &ex))
	var own efadv.DeviceAttr
	require.NoError(u.t, libefa.QueryDevice(u.context, &own, uint32(unsafe.Sizeof(own))))
	var cq efadv.CQAttr
	require.NoError(u.t, libefa.QueryCQ(u.cq, &cq, uint32(unsafe.Sizeof(cq))))
	cq.Buffer, cq.Doorbell = 0, 0
	return fmt.Sprintf("%+v\n%+v\n%+v\n%+v", device, ex, own, cq)
}

// TestNativeEFADevice compares attributes of the device.
func TestNativeEFADevice(t *testing.T) {
	users, inside := efaUsers(t, false)
	if !inside {
		return
	}
	c := users[0].deviceOf()
	require.Equal(t, c, users[1].deviceOf())
	t.Log(c)
}
