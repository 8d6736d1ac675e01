// SPDX-License-Identifier: BSD-2-Clause

package stub

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"strings"
	"unsafe"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/generated/ibv"
)

// call is one call of a function in C and in Go, with its arguments and environment.
type call struct {
	b       *bench
	f       *model.Func
	kinds   string // how C records the arguments
	args    []uint64
	results map[string][]Result // scripts
	memory  []byte              // device memory before the call
	lacking bool                // the device lacks the slot
	crash   bool                // C crashes when it calls the slot
	nothing bool                // the object is NULL
	inC     answer              // result in C
	log     []Record            // calls made in C
}

// newCall fills the device's buffers and creates arguments: objects of the device for pointers to them, buffers for
// other pointers, and random numbers.
func (b *bench) newCall(f *model.Func) *call {
	c := &call{b: b, f: f, kinds: (&text{}).kinds(f.Name, &f.Proto), results: map[string][]Result{}}
	for i := range Buffers {
		b.scatter(b.device.Buffer(i))
	}
	for i, p := range f.Params {
		c.args = append(c.args, c.argument(i, p))
	}
	if f.Variadic {
		c.args = append(c.args, number(b.random))
	}
	return c
}

// scatter fills memory with random numbers, half of them small.
func (b *bench) scatter(memory []byte) {
	for at := 0; at < len(memory); at += 8 {
		v := b.random.Uint64()
		if b.random.IntN(2) == 0 {
			v &= 0x0000000300000003
		}
		binary.NativeEndian.PutUint64(memory[at:], v)
	}
}

func (c *call) argument(i int, p model.Param) uint64 {
	typ, err := model.ParseType(p.Type)
	if err != nil {
		panic(err)
	}
	_, tag := typ.Tag()
	buffer := c.b.device.Buffer(i)
	address := uint64(uintptr(unsafe.Pointer(&buffer[0])))
	switch object := c.b.device.Address(tag); {
	case c.kinds[i] == 's' || c.kinds[i] == 'r' || c.kinds[i] == 'o':
		c.list(c.kinds[i], buffer)
	case c.kinds[i] == 'c':
		copy(buffer, fmt.Sprintf("text %d\x00", c.b.random.IntN(1000)))
	case c.kinds[i] == 'v':
		if p.Type == "_Bool" {
			return c.b.random.Uint64N(2)
		}
		return number(c.b.random)
	case typ.Pointers == 1 && object != 0:
		return uint64(object)
	}
	return address
}

// list writes three work requests with two entries each into a buffer.
func (c *call) list(kind byte, buffer []byte) {
	const n = 3
	sges := unsafe.Slice((*ibv.SGE)(unsafe.Pointer(&buffer[BufferSize-n*32])), n*2)
	base := unsafe.Pointer(&buffer[0])
	clear(buffer[:n*128])
	for i := range n {
		entries := ibv.PtrTo(&sges[2*i])
		switch last := i == n-1; kind {
		case 's':
			wr := (*ibv.SendWR)(unsafe.Add(base, i*128))
			s := shape{opcode: opcodes[c.b.random.IntN(len(opcodes))], arm: c.b.random.Uint32N(arms)}.values(c.b.random,
				c.b.data.Bytes())
			s.fill(wr)
			wr.SGList, wr.NumSGE = entries, 2
			if !last {
				wr.Next = ibv.Ptr[ibv.SendWR](uintptr(base) + uintptr(i+1)*128)
			}
		case 'r':
			wr := (*ibv.RecvWR)(unsafe.Add(base, i*32))
			*wr = ibv.RecvWR{WRID: c.b.random.Uint64(), SGList: entries, NumSGE: 2}
			if !last {
				wr.Next = ibv.Ptr[ibv.RecvWR](uintptr(base) + uintptr(i+1)*32)
			}
		case 'o':
			wr := (*ibv.OpsWR)(unsafe.Add(base, i*72))
			*wr = ibv.OpsWR{WRID: c.b.random.Uint64(), Opcode: ibv.OpsWROpcode(i),
				Flags: ibv.OpsFlags(c.b.random.IntN(4))}
			wr.TM.Add.SGList, wr.TM.Add.NumSGE, wr.TM.Add.Tag = entries, 2, c.b.random.Uint64()
			if !last {
				wr.Next = ibv.Ptr[ibv.OpsWR](uintptr(base) + uintptr(i+1)*72)
			}
		}
	}
}

// callees returns what the function may call, by the names of the stub: a slot, exported functions.
func (c *call) callees() []string {
	var all []string
	if c.f.Inline == nil {
		all = append(all, c.f.Name)
	} else {
		all = append(all, c.f.Inline.Calls...)
		all = append(all, slotsOf(c.f)...)
	}
	var here []string
	for _, name := range all {
		if c.b.stub.Has(name) {
			here = append(here, name)
		}
	}
	return here
}

// script creates results of the called function's type, and writes to its output arguments.
func (c *call) script() {
	typ, err := model.ParseType(c.f.Result)
	if err != nil {
		panic(err)
	}
	for _, name := range c.callees() {
		r := Result{}
		switch draw := c.b.random.IntN(8); {
		case typ.IsVoid():
		case typ.Pointers > 0 && draw < 2:
			r = Result{Value: 0, Errno: 12}
		case typ.Pointers > 0 && draw == 2:
			r = Result{Value: 0}
		case typ.Pointers > 0:
			buffer := c.b.device.Buffer(Buffers - 1)
			copy(buffer, "a text\x00")
			r.Value = uint64(uintptr(unsafe.Pointer(&buffer[0])))
		case strings.HasPrefix(c.f.Result, "_Bool"):
			r.Value = c.b.random.Uint64N(2)
		default:
			minus := func(v int64) uint64 { return uint64(-v) }
			r = []Result{{}, {}, {Value: 22}, {Value: 95}, {Value: 38}, {Value: minus(1), Errno: 13},
				{Value: minus(22)}, {Value: number(c.b.random)}}[draw]
			if int32(r.Value) == -1<<31 { // cannot be negated
				r.Value = 0
			}
		}
		if i := strings.IndexByte(c.kinds, 'b'); i > 0 && c.b.random.IntN(2) == 0 {
			r.Bad = []Bad{BadNull, BadAt(0), BadAt(1), BadAt(2)}[c.b.random.IntN(4)]
		}
		if c.b.stub.Has(name) && c.f.Inline == nil {
			r.Pokes = c.pokes()
		}
		c.results[name] = []Result{r}
	}
}

// pokes returns writes to buffers that arguments point to, like those of queries.
func (c *call) pokes() []Poke {
	var all []Poke
	for i, p := range c.f.Params {
		inside := c.args[i] >= uint64(uintptr(unsafe.Pointer(&c.b.device.Buffer(0)[0])))
		if (c.kinds[i] == 'p' || c.kinds[i] == 'a') && inside && !strings.HasPrefix(p.Type, "const ") && len(all) < 3 {
			all = append(all, Poke{Arg: i, Bytes: binary.NativeEndian.AppendUint64(nil, c.b.random.Uint64())})
		}
	}
	return all
}

// goArguments converts the arguments to Go types.
func (c *call) goArguments(fn reflect.Type) ([]reflect.Value, error) {
	args := c.args
	// known to the compiler
	if last := len(c.f.Params) - 1; last >= 0 && c.f.Params[last].Name == "is_access_const" {
		args = args[:last]
	}
	if fn.NumIn() != len(args) {
		return nil, fmt.Errorf("Go takes %d arguments, and C %d", fn.NumIn(), len(args))
	}
	var all []reflect.Value
	for i, a := range args {
		v := reflect.New(fn.In(i)).Elem()
		switch v.Kind() {
		case reflect.Pointer:
			if a != 0 {
				v.Set(reflect.NewAt(fn.In(i).Elem(), unsafe.Pointer(at[byte](uintptr(a)))))
			}
		case reflect.String:
			if a != 0 {
				v.SetString(cstring(uintptr(a)))
			}
		case reflect.Bool:
			v.SetBool(a != 0)
		default:
			v.Set(truncated(a, v))
		}
		if v.Kind() == reflect.Int { // C's int
			v.SetInt(int64(int32(a)))
		}
		all = append(all, v)
	}
	return all, nil
}
