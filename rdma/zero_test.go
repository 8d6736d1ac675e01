// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/generated/ibv"
)

// objectsOfC lists all types of Object.
var objectsOfC = []Object{new(Device), new(PD), new(CQ), new(CompChannel), new(QP), new(SRQ), new(MR), new(MW), new(AH),
	new(XRCD), new(TD), new(DM), new(DMAH), new(Buf), new(Counters), new(CompCntr), new(Flow), new(FlowAction), new(WQ),
	new(RWQIndTable)}

// TestZeroObjects calls every method of zero objects. Without a check, C would read address 0 and crash.
func TestZeroObjects(t *testing.T) {
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	for _, o := range objectsOfC {
		kind := reflect.TypeOf(o)
		for method := range kind.Methods() {
			n := method.Type.NumOut()
			if n == 0 || method.Type.Out(n-1) != reflect.TypeFor[error]() || method.Name == "Err" {
				continue
			}
			for _, full := range []bool{false, true} {
				args := []reflect.Value{reflect.New(kind.Elem())}
				for i := 1; i < method.Type.NumIn(); i++ {
					args = append(args, argument(method.Type.In(i), canceled, full))
				}
				assert.NotPanics(t, func() {
					call := method.Func.Call
					if method.Type.IsVariadic() {
						call = method.Func.CallSlice
					}
					results := call(args)
					err, _ := results[len(results)-1].Interface().(error)
					assert.Error(t, err, "%v.%s", kind, method.Name)
				}, "%v.%s", kind, method.Name)
			}
		}
	}
	err := new(QP).Connect(Endpoint{})
	assert.ErrorContains(t, err, "the object was never created: it is the zero value of its type")
	assert.ErrorIs(t, err, syscall.EINVAL)
	_, err = new(QP).PostSend(new(SendBatch))
	assert.ErrorContains(t, err, "the object was never created", "not an error about its send queue")
	assert.Equal(t, ibv.QPS_UNKNOWN, new(QP).State())
	assert.Nil(t, new(Device).C())
}

// TestNilObjects: methods of nil pointers panic or fail.
func TestNilObjects(t *testing.T) {
	for _, o := range objectsOfC {
		kind := reflect.TypeOf(o)
		for method := range kind.Methods() {
			n := method.Type.NumOut()
			if n == 0 || method.Type.Out(n-1) != reflect.TypeFor[error]() || method.Name == "Err" {
				continue
			}
			args := []reflect.Value{reflect.Zero(kind)}
			for i := 1; i < method.Type.NumIn(); i++ {
				args = append(args, argument(method.Type.In(i), t.Context(), true))
			}
			func() {
				defer func() { _ = recover() }()
				call := method.Func.Call
				if method.Type.IsVariadic() {
					call = method.Func.CallSlice
				}
				results := call(args)
				assert.False(t, results[n-1].IsNil(), "%v.%s", kind, method.Name)
			}()
		}
	}
}

// argument returns an argument for a method: nil or zero or, if full, an arbitrary value.
func argument(kind reflect.Type, ended context.Context, full bool) reflect.Value {
	if kind == reflect.TypeFor[context.Context]() {
		return reflect.ValueOf(ended)
	}
	switch {
	case kind.Kind() == reflect.Pointer && (full || !strings.HasSuffix(kind.Elem().PkgPath(), "/ibv")):
		return reflect.New(kind.Elem())
	case full && kind.Kind() == reflect.Slice:
		return reflect.MakeSlice(kind, 1, 1)
	}
	return reflect.Zero(kind)
}
