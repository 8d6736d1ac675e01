// SPDX-License-Identifier: BSD-2-Clause

package stub

import (
	"bytes"
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/program"
)

// polled and poll are the structures of c/poll.c.
type polled struct {
	wrID                                                                              uint64
	status, opcode, vendorErr, byteLen, immData, qpNum, srcQP, wcFlags, slid, flowTag uint32
	timestamp                                                                         uint64
	sl, dlidPathBits                                                                  uint8
	cvlan                                                                             uint16
}

type poll struct {
	cq, attr, max         uint64
	to                    *polled
	started, polled, next int64
}

// maxPolled is the maximum number of completions that the region reads.
const maxPolled = 6

// pollProgram is the loop of c/poll.c, unrolled: every completion's fields are stored separately. counted is the number
// read.
func pollProgram(cq *ibv.CQEx, attr uintptr, to *[maxPolled]polled, counted, started, next *uint32) *program.Program {
	p := &program.Program{}
	object := uint64(uintptr(unsafe.Pointer(cq)))
	var ends []program.Step
	p.Call(uintptr(cq.StartPoll), object, uint64(attr))
	p.StoreResult(uintptr(unsafe.Pointer(started)), 4)
	empty := p.JumpIfResult()
	for i := range to {
		d := &to[i]
		p.Copy(uintptr(unsafe.Pointer(&d.wrID)), uintptr(unsafe.Pointer(&cq.WRID)), 8)
		p.Copy(uintptr(unsafe.Pointer(&d.status)), uintptr(unsafe.Pointer(&cq.Status)), 4)
		for _, f := range []struct {
			slot ibv.FuncPtr
			to   unsafe.Pointer
			size int
		}{
			{cq.ReadOpcode, unsafe.Pointer(&d.opcode), 4}, {cq.ReadVendorErr, unsafe.Pointer(&d.vendorErr), 4},
			{cq.ReadByteLen, unsafe.Pointer(&d.byteLen), 4}, {cq.ReadImmData, unsafe.Pointer(&d.immData), 4},
			{cq.ReadQPNum, unsafe.Pointer(&d.qpNum), 4}, {cq.ReadSrcQP, unsafe.Pointer(&d.srcQP), 4},
			{cq.ReadWCFlags, unsafe.Pointer(&d.wcFlags), 4}, {cq.ReadSLID, unsafe.Pointer(&d.slid), 4},
			{cq.ReadFlowTag, unsafe.Pointer(&d.flowTag), 4}, {cq.ReadCompletionTS, unsafe.Pointer(&d.timestamp), 8},
			{cq.ReadSL, unsafe.Pointer(&d.sl), 1}, {cq.ReadDLIDPathBits, unsafe.Pointer(&d.dlidPathBits), 1},
			{cq.ReadCVLAN, unsafe.Pointer(&d.cvlan), 2},
		} {
			p.Call(uintptr(f.slot), object)
			p.StoreResult(uintptr(f.to), f.size)
		}
		p.Store(uintptr(unsafe.Pointer(counted)), 4, uint64(i+1))
		if i+1 < len(to) {
			p.Call(uintptr(cq.NextPoll), object)
			p.StoreResult(uintptr(unsafe.Pointer(next)), 4)
			ends = append(ends, p.JumpIfResult())
		}
	}
	for _, e := range ends {
		p.Target(e)
	}
	p.Call(uintptr(cq.EndPoll), object)
	p.Target(empty)
	return p
}

// TestPollRegion checks that the loop from ibv_start_poll to ibv_end_poll, as one program, makes the same calls and
// reads the same values as the loop in C, for each way to end.
func TestPollRegion(t *testing.T) {
	b := newBench(t)
	cq := b.device.CQEx
	object, attr := b.device.Address("ibv_cq_ex"), uintptr(unsafe.Pointer(&b.device.Buffer(1)[0]))
	to := (*[maxPolled]polled)(unsafe.Pointer(&b.other.Bytes()[0]))
	counters := (*[3]uint32)(unsafe.Pointer(&b.device.Buffer(2)[0]))
	program := pollProgram(cq, attr, to, &counters[0], &counters[1], &counters[2])
	reads := []string{"opcode", "vendor_err", "byte_len", "imm_data", "qp_num", "src_qp", "wc_flags", "slid",
		"flow_tag", "completion_ts", "sl", "dlid_path_bits", "cvlan"}
	// values that a provider writes for each completion: status and wr_id
	completion := func(result uint64) Result {
		entry := binary.NativeEndian.AppendUint32(nil, b.random.Uint32N(24))
		at := int(unsafe.Offsetof(ibv.CQEx{}.Status))
		id := binary.NativeEndian.AppendUint64(nil, b.random.Uint64())
		return Result{Value: result,
			Pokes: []Poke{{Offset: at, Bytes: entry}, {Offset: int(unsafe.Offsetof(ibv.CQEx{}.WRID)), Bytes: id}}}
	}
	ends := map[int64]int{}
	for range 1_000 {
		script := func() {}
		{
			start := []uint64{0, 0, 0, 0, 2, 22}[b.random.IntN(6)]
			results := map[string][]Result{"start_poll": {completion(start)}}
			for range b.random.IntN(maxPolled) {
				results["next_poll"] = append(results["next_poll"], completion(0))
			}
			results["next_poll"] = append(results["next_poll"], completion([]uint64{2, 5}[b.random.IntN(2)]))
			for _, r := range reads {
				for range MaxResults {
					results["read_"+r] = append(results["read_"+r], Result{Value: b.random.Uint64()})
				}
			}
			script = func() {
				for name, r := range results {
					b.stub.Script("ibv_cq_ex."+name, r...)
				}
			}
		}
		script()
		b.stub.ResetLog()
		clear(b.c.Bytes()[:4096])
		p := &poll{cq: uint64(object), attr: uint64(attr), max: maxPolled,
			to: (*polled)(unsafe.Pointer(&b.c.Bytes()[0]))}
		f := runtime.Function{Name: "stub_poll_region"}
		require.NoError(t, f.Slot(b.stub.Symbol("stub_poll_region")).Void(uintptr(unsafe.Pointer(p))))
		want := bytes.Clone(b.stub.RawLog())
		wantPolled := *(*[maxPolled]polled)(unsafe.Pointer(&b.c.Bytes()[0]))
		ends[p.polled]++
		for _, way := range ways {
			script()
			b.stub.ResetLog()
			clear(b.other.Bytes()[:4096])
			*counters = [3]uint32{}
			program.Run(way)
			require.Equal(t, [3]int64{p.polled, p.started, p.next},
				[3]int64{int64(counters[0]), int64(counters[1]), int64(counters[2])}, "%v", way)
			if got := b.stub.RawLog(); !bytes.Equal(want, got) {
				require.Equal(t, b.stub.decode(want), b.stub.decode(got), "seed %d: %v", *seed, way)
			}
			require.Equal(t, wantPolled, *to, "seed %d: %v", *seed, way)
		}
	}
	assert.Len(t, ends, maxPolled+1, "none, one and all completions: %v", ends)
}
