// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma"
)

// flowSpecs returns specs of each kind with random filters, and their sizes.
func flowSpecs(r *rand.Rand, counters *ibv.Counters) (specs []*ibv.FlowSpec) {
	add := func(kind ibv.FlowSpecType, size uintptr, random bool) *ibv.FlowSpec {
		s := new(ibv.FlowSpec)
		if random {
			b := unsafe.Slice((*byte)(unsafe.Pointer(s)), size)
			for i := range b {
				b[i] = byte(r.Uint32())
			}
		}
		*s.Hdr() = ibv.FlowSpecHdr{Type: kind, Size: uint16(size)}
		specs = append(specs, s)
		return s
	}
	for _, inner := range []ibv.FlowSpecType{0, ibv.FLOW_SPEC_INNER} {
		add(ibv.FLOW_SPEC_ETH|inner, unsafe.Sizeof(ibv.FlowSpecEth{}), true)
		add(ibv.FLOW_SPEC_IPV4|inner, unsafe.Sizeof(ibv.FlowSpecIPv4{}), true)
		add(ibv.FLOW_SPEC_IPV4_EXT|inner, unsafe.Sizeof(ibv.FlowSpecIPv4Ext{}), true)
		ipv6 := add(ibv.FLOW_SPEC_IPV6|inner, unsafe.Sizeof(ibv.FlowSpecIPv6{}), true).IPv6()
		*padding(&ipv6.Mask) = 0
		add(ibv.FLOW_SPEC_ESP|inner, unsafe.Sizeof(ibv.FlowSpecESP{}), true)
		add(ibv.FLOW_SPEC_TCP|inner, unsafe.Sizeof(ibv.FlowSpecTCPUDP{}), true)
		add(ibv.FLOW_SPEC_UDP|inner, unsafe.Sizeof(ibv.FlowSpecTCPUDP{}), true)
		add(ibv.FLOW_SPEC_MPLS|inner, unsafe.Sizeof(ibv.FlowSpecMPLS{}), true)
	}
	add(ibv.FLOW_SPEC_VXLAN_TUNNEL, unsafe.Sizeof(ibv.FlowSpecTunnel{}), true)
	add(ibv.FLOW_SPEC_GRE, unsafe.Sizeof(ibv.FlowSpecGRE{}), true)
	add(ibv.FLOW_SPEC_ACTION_TAG, unsafe.Sizeof(ibv.FlowSpecActionTag{}), false).FlowTag().TagID = 0x1234
	add(ibv.FLOW_SPEC_ACTION_DROP, unsafe.Sizeof(ibv.FlowSpecActionDrop{}), false)
	add(ibv.FLOW_SPEC_ACTION_COUNT, unsafe.Sizeof(ibv.FlowSpecCounterAction{}), false).FlowCount().Counters =
		ibv.PtrTo(counters)
	return specs
}

// padding returns the byte of a filter that belongs to no field.
func padding(f *ibv.FlowIPv6Filter) *byte {
	return (*byte)(unsafe.Add(unsafe.Pointer(f), unsafe.Offsetof(f.HopLimit)+1))
}

// flowAttr returns attributes of a rule with specs, which follow them.
func flowAttr(attr ibv.FlowAttr, specs ...*ibv.FlowSpec) *ibv.FlowAttr {
	memory := make([]uint64, 1<<8)
	own := (*ibv.FlowAttr)(unsafe.Pointer(&memory[0]))
	at := unsafe.Sizeof(attr)
	for _, s := range specs {
		at += uintptr(copy(unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(own), at)), s.Hdr().Size),
			unsafe.Slice((*byte)(unsafe.Pointer(s)), s.Hdr().Size)))
	}
	attr.NumOfSpecs, attr.Size = uint8(len(specs)), uint16(at)
	*own = attr
	return own
}

// TestNativeFlows compares rules of flow steering and their counters by libmlx5 and by package native.
func TestNativeFlows(t *testing.T) {
	if os.Getenv(envInside) == "" {
		compareRecords(t, nil)
		return
	}
	out, err := os.Create(os.Getenv(envResults))
	keep(t, out, err)
	u := newUser(t, envBackend(t))
	qp, err := verbs.CreateQP(u.pd, &ibv.QPInitAttr{SendCQ: ibv.PtrTo(u.cq), RecvCQ: ibv.PtrTo(u.cq),
		QPType: ibv.QPT_UD, Cap: ibv.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	require.NoError(t, err)
	counters, err := verbs.CreateCounters(u.context, &ibv.CountersInitAttr{})
	require.NoError(t, err)
	_, err = verbs.CreateCounters(u.context, &ibv.CountersInitAttr{CompMask: 1})
	fmt.Fprintln(out, err != nil)
	r := rand.New(rand.NewPCG(3, 4))
	specs := flowSpecs(r, counters)
	var rules []*ibv.Flow
	rule := func(attr ibv.FlowAttr, specs ...*ibv.FlowSpec) {
		t.Helper()
		f, err := verbs.CreateFlow(qp, flowAttr(attr, specs...))
		fmt.Fprintln(out, len(specs), err != nil)
		if err == nil {
			fmt.Fprintln(out, f.Handle, f.CompMask, f.Context == ibv.PtrTo(u.context))
			rules = append(rules, f)
		}
	}
	end := func() {
		for _, f := range rules {
			require.NoError(t, verbs.DestroyFlow(f))
		}
		rules = nil
	}
	read := func(n uint32, flags ibv.ReadCountersFlags) {
		values := make([]uint64, 8)
		err := verbs.ReadCounters(counters, &values[0], n, flags)
		fmt.Fprintln(out, values, errnoOf(t, err))
	}
	attach := func(of ibv.CounterDescription, index, mask uint32) {
		err := verbs.AttachCountersPointFlow(counters, &ibv.CounterAttachAttr{CounterDesc: of, Index: index, CompMask: mask},
			nil)
		fmt.Fprintln(out, of, index, errnoOf(t, err))
	}
	count := specs[len(specs)-1]
	for _, s := range specs[:len(specs)-1] {
		rule(ibv.FlowAttr{Port: 1}, s)
	}
	end()
	for range 20 {
		r.Shuffle(len(specs)-1, func(i, j int) { specs[i], specs[j] = specs[j], specs[i] })
		rule(ibv.FlowAttr{Port: 1, Type: ibv.FlowAttrType(r.IntN(4)), Priority: uint16(r.IntN(1 << 16)),
			Flags: ibv.FlowFlags(r.IntN(4))}, specs[:r.IntN(11)]...)
	}
	padded := new(ibv.FlowSpec)
	*padded.IPv6() = ibv.FlowSpecIPv6{Type: ibv.FLOW_SPEC_IPV6, Size: uint16(unsafe.Sizeof(ibv.FlowSpecIPv6{}))}
	*padding(&padded.IPv6().Mask) = 1
	rule(ibv.FlowAttr{Port: 1}, padded)
	rule(ibv.FlowAttr{Port: 2}, specs[0])
	end()
	read(8, 0)
	attach(ibv.COUNTER_PACKETS, 2, 0)
	attach(ibv.COUNTER_BYTES, 0, 0)
	attach(ibv.COUNTER_BYTES, 2, 0)
	attach(ibv.COUNTER_BYTES+1, 3, 0)
	attach(ibv.COUNTER_BYTES, 3, 1)
	rule(ibv.FlowAttr{Port: 1}, specs[0], count)
	attach(ibv.COUNTER_PACKETS, 4, 0)
	read(8, 0)
	read(3, ibv.READ_COUNTERS_ATTR_PREFER_CACHED)
	read(2, 0)
	rule(ibv.FlowAttr{Port: 1}, count)
	rule(ibv.FlowAttr{Port: 1}, count, count)
	read(3, 0)
	fmt.Fprintln(out, errnoOf(t, verbs.AttachCountersPointFlow(counters, &ibv.CounterAttachAttr{}, rules[0])))
	fmt.Fprintln(out, errnoOf(t, verbs.DestroyCounters(counters)))
	end()
	require.NoError(t, verbs.DestroyCounters(counters))
	require.NoError(t, verbs.DestroyQP(qp))
}

// TestFlowCounters creates a rule with counters by package rdma.
func TestFlowCounters(t *testing.T) {
	if os.Getenv(envInside) == "" {
		for _, path := range []string{pathC, pathNative} {
			again(t, emulated(t), path)
		}
		return
	}
	d := openDevice(t)
	qp, err := d.NewUD(rdma.QPParts{})
	keep(t, qp, err)
	n, err := d.CreateCounters(nil)
	keep(t, n, err)
	udp, count := new(ibv.FlowSpec), new(ibv.FlowSpec)
	*udp.TCPUDP() = ibv.FlowSpecTCPUDP{Type: ibv.FLOW_SPEC_UDP, Val: ibv.FlowTCPUDPFilter{DstPort: uint16(ibv.ToBE16(4791))},
		Mask: ibv.FlowTCPUDPFilter{DstPort: 0xffff}}
	*count.FlowCount() = ibv.FlowSpecCounterAction{Type: ibv.FLOW_SPEC_ACTION_COUNT, Counters: n.Ptr()}
	_, err = qp.CreateFlow(&ibv.FlowAttr{Port: 1}, slices.Repeat([]*ibv.FlowSpec{udp}, 11)...)
	assert.ErrorIs(t, err, syscall.EINVAL, "one more than the kernel takes")
	if os.Getenv(envInside) == pathNative { // libmlx5 would keep the counters locked
		_, err := qp.CreateFlow(&ibv.FlowAttr{Port: 1}, udp, count)
		assert.ErrorIs(t, err, syscall.EINVAL, "no value is attached")
	}
	require.NoError(t, n.Attach(&ibv.CounterAttachAttr{CounterDesc: ibv.COUNTER_PACKETS, Index: 1}, nil))
	f, err := qp.CreateFlow(&ibv.FlowAttr{Port: 1}, udp, count)
	keep(t, f, err)
	assert.ErrorIs(t, n.Close(), rdma.ErrInUse)
	values := make([]uint64, 2)
	require.NoError(t, n.Read(values, 0))
	assert.Zero(t, values[0])
	assert.NotZero(t, values[1])
}
