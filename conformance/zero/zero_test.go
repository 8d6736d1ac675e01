// SPDX-License-Identifier: BSD-2-Clause

package zero

import (
	"context"
	"fmt"
	"io"
	"reflect"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/efa"
	"github.com/goverbs/goverbs/rdma/mlx5"
	"github.com/goverbs/goverbs/rdma/registration"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
	"github.com/goverbs/goverbs/rpma"
	"github.com/goverbs/goverbs/runtime"
)

var functions = map[string]any{
	"rdma.AdoptDevice": rdma.AdoptDevice, "rdma.CloseAll": rdma.CloseAll, "rdma.CompletionErr": rdma.CompletionErr,
	"rdma.Datagram": rdma.Datagram, "rdma.DevicesOf": rdma.DevicesOf, "rdma.GIDAddress": rdma.GIDAddress,
	"rdma.ImportDevice": rdma.ImportDevice, "rdma.ImportDeviceOn": rdma.ImportDeviceOn, "rdma.MTUBytes": rdma.MTUBytes,
	"rdma.Needed": rdma.Needed, "rdma.NewBuffer": rdma.NewBuffer, "rdma.NewCalls": rdma.NewCalls,
	"rdma.NewCompletionQueue": rdma.NewCompletionQueue, "rdma.NewPollProgram": rdma.NewPollProgram,
	"rdma.NewPoller": rdma.NewPoller[int], "rdma.NewRecvBatch": rdma.NewRecvBatch,
	"rdma.NewRecvQueue": rdma.NewRecvQueue, "rdma.NewSendBatch": rdma.NewSendBatch,
	"rdma.NewSendQueue": rdma.NewSendQueue, "rdma.NewSharedRecvQueue": rdma.NewSharedRecvQueue,
	"rdma.NewTagBatch": rdma.NewTagBatch, "rdma.NewWRProgram": rdma.NewWRProgram, "rdma.Open": rdma.Open,
	"rdma.OpenOn": rdma.OpenOn, "rdma.Pin": rdma.Pin, "rdma.PinThread": rdma.PinThread,

	"registration.NewCache": registration.NewCache, "registration.Parallel": registration.Parallel,
	"registration.Prefault": registration.Prefault,

	"cm.AddrPort": cm.AddrPort, "cm.CreateEP": cm.CreateEP, "cm.CreateEventChannelOn": cm.CreateEventChannelOn,
	"cm.CreateID": cm.CreateID, "cm.CreateIDOn": cm.CreateIDOn, "cm.DefaultConnParam": cm.DefaultConnParam,
	"cm.GetAddrInfo": cm.GetAddrInfo, "cm.GetAddrInfoOn": cm.GetAddrInfoOn,
	"cm.GetDevicesOn": cm.GetDevicesOn, "cm.NewIBAddr": cm.NewIBAddr,
	"cm.Sockaddr": cm.Sockaddr,

	"stream.Dial": stream.Dial, "stream.Listen": stream.Listen,

	"mlx5.CreateQP": mlx5.CreateQP, "mlx5.DC": mlx5.DC, "mlx5.DCStream": mlx5.DCStream, "mlx5.NewPath": mlx5.NewPath,
	"mlx5.Release": mlx5.Release,

	"efa.CreateDriverQP": efa.CreateDriverQP, "efa.CreateQP": efa.CreateQP,

	"soft.Named": soft.Named, "soft.New": soft.New, "soft.Wired": soft.Wired,

	"rpma.CodeOf": rpma.CodeOf, "rpma.FindDevice": rpma.FindDevice, "rpma.FindDeviceOn": rpma.FindDeviceOn,
	"rpma.Immediate": rpma.Immediate, "rpma.NewPeer": rpma.NewPeer, "rpma.NewStripe": rpma.NewStripe,
	"rpma.ODPCapable": rpma.ODPCapable, "rpma.OpenFile": rpma.OpenFile, "rpma.ParsePeerConfig": rpma.ParsePeerConfig,
	"rpma.ParseRemoteMR": rpma.ParseRemoteMR,

	"runtime.BackendOf": runtime.BackendOf, "runtime.CallSlot": runtime.CallSlot, "runtime.Callable": runtime.Callable,
	"runtime.NewSpace": runtime.NewSpace, "runtime.SlotOf": runtime.SlotOf,
	"runtime.Word": runtime.Word,
}

// call calls f with zero values and a cancelled context. It returns an error if f dereferences nil.
func call(f reflect.Value, receiver ...reflect.Value) (panicked error) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if err, ok := v.(goruntime.Error); ok && strings.Contains(err.Error(), "invalid memory address") {
			panicked = fmt.Errorf("%w at %s", err, where())
		}
	}()
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	args := receiver
	for i := len(args); i < f.Type().NumIn(); i++ {
		in := f.Type().In(i)
		switch {
		case in == reflect.TypeFor[context.Context]():
			args = append(args, reflect.ValueOf(canceled))
		case in.Kind() == reflect.Func:
			args = append(args, reflect.MakeFunc(in, func([]reflect.Value) (zeros []reflect.Value) {
				for out := range in.Outs() {
					zeros = append(zeros, reflect.Zero(out))
				}
				return zeros
			}))
		default:
			args = append(args, reflect.Zero(in))
		}
	}
	do := f.Call
	if f.Type().IsVariadic() {
		do = f.CallSlice
	}
	for _, result := range do(args) {
		if kind := result.Type(); kind.Kind() == reflect.Func && kind.NumIn() == 1 &&
			kind.In(0).Kind() == reflect.Func && !result.IsNil() {
			result.Call([]reflect.Value{reflect.MakeFunc(kind.In(0),
				func([]reflect.Value) []reflect.Value { return []reflect.Value{reflect.ValueOf(false)} })})
		}
	}
	return nil
}

// where returns the function of this module that panicked.
func where() string {
	pcs := make([]uintptr, 64)
	frames := goruntime.CallersFrames(pcs[:goruntime.Callers(3, pcs)])
	for {
		f, more := frames.Next()
		if strings.Contains(f.Function, "goverbs") {
			return fmt.Sprintf("%s:%d", f.Function, f.Line)
		}
		if !more {
			return "?"
		}
	}
}

// panics maps each function that panics, like its C counterpart, to the argument that must not be nil: part of a
// structure that the caller owns.
var panics = map[string]string{
	"rdma.CompletionErr": "a polled completion", "rdma.Datagram": "a polled completion",
	"rpma.Immediate": "a polled completion",
	"mlx5.DC":        "a request of a program", "mlx5.DCStream": "a request of a program",
}

// TestNilArguments checks that no function dereferences a nil argument.
func TestNilArguments(t *testing.T) {
	for name, f := range functions {
		if err := call(reflect.ValueOf(f)); panics[name] == "" {
			assert.NoError(t, err, name)
		} else {
			assert.Error(t, err, "%s no longer panics", name)
		}
	}
}

// TestZeroFabric checks that no method of a zero fabric or capture dereferences nil.
func TestZeroFabric(t *testing.T) {
	for _, zero := range []any{new(soft.Fabric), new(soft.Capture)} {
		sweep(t, zero, ", zero")
	}
	assert.ErrorIs(t, new(soft.Fabric).Close(), syscall.EINVAL)
	assert.ErrorIs(t, new(soft.Fabric).SetFaults(soft.Faults{}), syscall.EINVAL)
}

// TestNilErrors checks that functions return an error for a nil argument.
func TestNilErrors(t *testing.T) {
	qp := (*rdma.QP)(nil)
	assert.ErrorContains(t, rdma.CloseAll(nil, qp), "object 0 is nil")
	assert.ErrorContains(t, rdma.CloseAll(nil, nil), "object 0 is nil")
	assert.NoError(t, rdma.CloseAll(nil))
	assert.ErrorIs(t, rdma.NewWRProgram(nil).Err(), rdma.ErrNotSupported)
	for _, o := range objects(t) {
		switch o := o.(type) {
		case *rdma.QP:
			_, err := o.PostSend(nil)
			assert.ErrorContains(t, err, "the batch is nil")
			_, err = o.PostRecv(nil)
			assert.ErrorContains(t, err, "the batch is nil")
			if o.CEx() != nil {
				assert.ErrorContains(t, o.PostProgram(nil), "the program is nil")
			} else {
				assert.ErrorIs(t, rdma.NewWRProgram(o.CEx()).Err(), rdma.ErrNotSupported)
			}
		case *rdma.SRQ:
			_, err := o.PostRecv(nil)
			assert.ErrorContains(t, err, "the batch is nil")
			_, err = o.PostTags(nil)
			assert.ErrorContains(t, err, "the batch is nil")
		case *rdma.CQ:
			_, err := o.PollProgram(nil)
			assert.ErrorContains(t, err, "the program is nil")
		}
	}
}

// objects returns objects of the software device, closed when the test ends.
func objects(t *testing.T) (all []any) {
	fabric, err := soft.New(soft.Options{})
	require.NoError(t, err)
	add := func(o any, err error) {
		t.Helper()
		require.NoError(t, err)
		all = append(all, o)
	}
	t.Cleanup(func() {
		for _, o := range slices.Backward(all) {
			if c, ok := o.(io.Closer); ok {
				c.Close()
			}
		}
	})
	add(fabric, nil)
	device, err := rdma.OpenOn(fabric, "soft0")
	add(device, err)
	channel, err := device.CreateCompChannel()
	add(channel, err)
	pd, err := device.AllocPD()
	add(pd, err)
	mr, err := pd.RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE)
	add(mr, err)
	mw, err := pd.AllocMW(ibv.MW_TYPE_1)
	add(mw, err)
	cq, err := device.CreateCQEx(&ibv.CQInitAttrEx{CQE: 100, Channel: channel.Ptr()})
	add(cq, err)
	polls, err := cq.NewPollProgram(1)
	add(polls, err)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, rdma.QueueOptions{})
	add(srq, err)
	qp, err := device.CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), PD: pd.Ptr(),
		Cap:          ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
		CompMask:     ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS,
		SendOpsFlags: ibv.QP_EX_WITH_RDMA_WRITE}, rdma.QueueOptions{})
	add(qp, err)
	plain, err := device.NewRC(rdma.QPParts{PD: pd})
	add(plain, err)
	local, err := plain.Endpoint()
	require.NoError(t, err)
	require.NoError(t, plain.Connect(local))
	program, err := qp.NewWRProgram()
	add(program, err)
	sends, err := rdma.NewSendBatch(4, 1, 0)
	add(sends, err)
	recvs, err := rdma.NewRecvBatch(4, 1)
	add(recvs, err)
	tags, err := rdma.NewTagBatch(4, 1)
	add(tags, err)
	buffer, err := rdma.NewBuffer(64, rdma.MapOptions{})
	add(buffer, err)
	cache, err := registration.NewCache(pd, registration.Options{})
	add(cache, err)
	events, err := cm.CreateEventChannelOn(fabric)
	add(events, err)
	id, err := cm.CreateIDOn(fabric, rdmacm.PS_TCP)
	add(id, err)
	return all
}

// TestNilInMethods checks that no method of an open or closed object dereferences a nil argument.
func TestNilInMethods(t *testing.T) {
	for _, o := range objects(t) {
		sweep(t, o, "")
	}
	all := objects(t)
	for _, o := range slices.Backward(all) {
		if c, ok := o.(io.Closer); ok {
			c.Close()
		}
	}
	for _, o := range all {
		sweep(t, o, ", closed")
	}
}

func sweep(t *testing.T, o any, state string) {
	t.Helper()
	kind := reflect.TypeOf(o)
	for method := range kind.Methods() {
		name := kind.String() + "." + method.Name
		if method.Name != "Close" || state == ", zero" {
			assert.NoError(t, call(method.Func, reflect.ValueOf(o)), name+state)
		}
	}
}
