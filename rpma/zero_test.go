// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"context"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/rdma"
)

// TestZeroObjects calls every method on nil and on zero values, with nil and other arguments. No method may panic, and
// every method with an error result must return an error.
func TestZeroObjects(t *testing.T) {
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	for _, o := range []any{new(Async), new(Batch), new(CQ), new(Conn), new(ConnRequest), new(Device), new(Endpoint),
		new(File), new(MR), new(Op), new(Peer), new(RemoteMR), new(SRQ), new(Stripe)} {
		kind := reflect.TypeOf(o)
		for method := range kind.Methods() {
			name := kind.Elem().Name() + "." + method.Name
			_, ofOp := o.(*Op)
			_, ofDevice := o.(*Device)
			if _, promoted := reflect.TypeFor[*rdma.Device]().MethodByName(method.Name); ofDevice && promoted &&
				method.Name != "Close" {
				continue
			}
			receivers := []reflect.Value{reflect.New(kind.Elem())}
			if !ofOp { // methods of Op have value receivers
				receivers = append(receivers, reflect.Zero(kind))
			}
			for _, receiver := range receivers {
				for _, full := range []bool{false, true} {
					args := []reflect.Value{receiver}
					for i := 1; i < method.Type.NumIn(); i++ {
						args = append(args, argument(method.Type.In(i), canceled, full))
					}
					assert.NotPanics(t, func() {
						results := method.Func.Call(args)
						n := len(results)
						if n == 0 || method.Type.Out(n-1) != reflect.TypeFor[error]() {
							return
						}
						err, _ := results[n-1].Interface().(error)
						if name == "ConnRequest.Close" && !receiver.IsNil() || name == "Conn.CompletionErr" {
							return // no error: a closed request, or a function without an object
						}
						assert.ErrorIs(t, err, Code(ErrInvalid), name)
					}, name)
				}
			}
		}
	}
	assert.EqualError(t, new(Conn).Disconnect(), "rpma: Conn.Disconnect: object is nil or a zero value; "+
		"create it with its constructor: "+ErrInvalid.Error())
	for _, zero := range []*Conn{nil, new(Conn)} {
		_, err := NewStripe(1, zero)
		assert.ErrorIs(t, err, ErrInvalid)
	}
	_, err := NewPeer(new(Device), PeerOptions{})
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = (&ConnConfig{SRQ: new(SRQ)}).complete("x")
	assert.ErrorContains(t, err, "ConnConfig.SRQ is a zero SRQ")
	r := connected(t, options{})
	_, err = r.a.peer.RegFile(new(File), everyUsage)
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = r.a.peer.RegBuffer(new(rdma.Buffer), everyUsage)
	assert.ErrorIs(t, err, ErrInvalid)
	assert.ErrorIs(t, r.a.conn.Write(new(RemoteMR), 0, new(MR), 0, 1, Always, 1), ErrInvalid)
}

// argument returns an argument for a method: a zero value, or if full a pointer to a zero value.
func argument(kind reflect.Type, ended context.Context, full bool) reflect.Value {
	switch {
	case kind == reflect.TypeFor[context.Context]():
		return reflect.ValueOf(ended)
	case kind.Kind() == reflect.Pointer && (full || kind.Elem().Name() == "WC"):
		return reflect.New(kind.Elem())
	case full && kind.Kind() == reflect.Slice:
		return reflect.MakeSlice(kind, 1, 1)
	case full && kind.Kind() == reflect.Uint8:
		return reflect.ValueOf(uint8(1)).Convert(kind)
	}
	return reflect.Zero(kind)
}
