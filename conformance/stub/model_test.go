// SPDX-License-Identifier: BSD-2-Clause

package stub

import (
	"fmt"
	goruntime "runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/headers"
)

// primary is the model from which the Go packages were generated.
var primary = sync.OnceValue(func() *model.Release {
	data, err := headers.Model(headers.Primary("rdma-core"))
	if err != nil {
		panic(err)
	}
	r, err := model.Decode(headers.Primary("rdma-core"), data)
	if err != nil {
		panic(err)
	}
	return r
})

// functions are the functions of the headers by name.
var functions = sync.OnceValue(func() map[string]*model.Func {
	all := map[string]*model.Func{}
	for _, h := range primary().Headers {
		for i := range h.Funcs {
			all[h.Funcs[i].Name] = &h.Funcs[i]
		}
	}
	return all
})

var records = sync.OnceValue(func() map[string]*model.Record {
	all := map[string]*model.Record{}
	for _, h := range primary().Headers {
		for i := range h.Records {
			all[h.Records[i].Tag] = &h.Records[i]
		}
	}
	return all
})

// slot returns the address of a function slot: slot("ibv_qp_ex.wr_send").
func (d *Device) slot(name string) *uintptr {
	tag, member, _ := strings.Cut(name, ".")
	var object unsafe.Pointer
	switch tag {
	case "verbs_context":
		object = unsafe.Pointer(d.VerbsContext) // Go's layout: has more members in front than older headers
	case "ibv_context_ops":
		object = unsafe.Pointer(&d.Context.Ops)
	default:
		object = unsafe.Pointer(&d.Memory()[d.stub.places[tag].offset])
	}
	for _, f := range records()[tag].Fields {
		if f.Name == member && f.Func != nil {
			return (*uintptr)(unsafe.Add(object, f.Offset.On(goruntime.GOARCH)))
		}
	}
	panic(fmt.Sprintf("struct %s has no slot %s", tag, member))
}
