// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
)

// Offsets and sizes in the two buffers.
const (
	moved     = 16  // bytes transferred by an opcode; atomics transfer 8
	recvAt    = 128 // offset of the receive in the remote buffer
	grh       = 40  // bytes before the data of a UD message
	bufferLen = 1024
	before    = 41 // initial value for atomics
	swapped   = 99
)

// scene is two queue pairs in RTS, with everything that any opcode needs: connected types are connected, and B has
// posted a receive and grants A all access to its buffer.
type scene struct {
	*testbed.Testbed
	kind          ibv.QPType
	opcode        ibv.WROpcode
	p             *testbed.Pair
	local, remote *testbed.Buffer
	ah            *ibv.AH
	window        *ibv.MW // for BIND_MW
	key           uint32  // key of the bound window, for LOCAL_INV and SEND_WITH_INV
}

// buffers are registered once, since registration takes longer than a measurement.
type buffers struct{ local, remote *testbed.Buffer }

func newBuffers(r *testbed.Testbed) buffers {
	access := r.Access | ibv.ACCESS_MW_BIND
	return buffers{r.Buffer(bufferLen, access), r.Buffer(bufferLen, access)}
}

// newScene creates the scene. create creates A; B is an ordinary queue pair.
func newScene(r *testbed.Testbed, b buffers, kind ibv.QPType, opcode ibv.WROpcode,
	create func(send, recv *ibv.CQ) *ibv.QP) *scene {
	s := &scene{Testbed: r, kind: kind, opcode: opcode, local: b.local, remote: b.remote}
	s.p = &testbed.Pair{ASend: r.CQ(16), ARecv: r.CQ(16), BSend: r.CQ(16), BRecv: r.CQ(16)}
	s.p.A, s.p.B = create(s.p.ASend, s.p.ARecv), r.QP(kind, s.p.BSend, s.p.BRecv)
	r.Connect(s.p.A, s.p.B)
	clear(s.local.Bytes)
	clear(s.remote.Bytes)
	switch opcode {
	case ibv.WR_RDMA_READ:
		copy(s.remote.Bytes, pattern())
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		binary.NativeEndian.PutUint64(s.remote.Bytes, before)
	default:
		copy(s.local.Bytes, pattern())
	}
	r.Recv(s.p.B, 7, s.remote.SGE(recvAt, 512))
	if kind == ibv.QPT_UD {
		s.ah = r.Handle()
	}
	if testbed.IWARP() { // no windows: a region is invalidated, and a window that does not exist is bound
		s.window = &testbed.Records[ibv.MW](r, 1)[0]
		s.key = r.Buffer(bufferLen, r.Access).MR.RKey
		return s
	}
	switch opcode {
	case ibv.WR_BIND_MW:
		s.window = r.Window()
	case ibv.WR_LOCAL_INV: // without a bound window, it crashes the kernel
		s.key = s.bound(s.p.A, s.p.ASend, s.local)
	case ibv.WR_SEND_WITH_INV:
		s.key = s.bound(s.p.B, s.p.BSend, s.remote)
	}
	return s
}

// bound returns the key of a window that is bound on a queue pair, or on an RC queue pair if the type does not support
// windows.
func (s *scene) bound(qp *ibv.QP, cq *ibv.CQ, b *testbed.Buffer) uint32 {
	if s.kind == ibv.QPT_UD {
		other := s.Pair(ibv.QPT_RC)
		qp, cq = other.A, other.ASend
	}
	return s.Bound(qp, cq, b)
}

func pattern() []byte {
	p := make([]byte, moved)
	for i := range p {
		p[i] = byte(0xa0 + i)
	}
	return p
}

// length returns the length of the opcode's SGE.
func (s *scene) length() int {
	switch s.opcode {
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD, ibv.WR_ATOMIC_WRITE:
		return 8
	}
	return moved
}

// data classifies the transferred data.
func (s *scene) data() string {
	received := s.remote.Bytes[recvAt:]
	if s.kind == ibv.QPT_UD {
		received = received[grh:]
	}
	n := s.length()
	var ok bool
	switch s.opcode {
	case ibv.WR_BIND_MW, ibv.WR_LOCAL_INV, ibv.WR_FLUSH:
		return "-"
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV, ibv.WR_TSO:
		ok = bytes.Equal(received[:n], pattern())
	case ibv.WR_RDMA_READ:
		ok = bytes.Equal(s.local.Bytes[:n], pattern())
	case ibv.WR_ATOMIC_CMP_AND_SWP:
		ok = number64(s.local) == before && number64(s.remote) == swapped
	case ibv.WR_ATOMIC_FETCH_AND_ADD:
		ok = number64(s.local) == before && number64(s.remote) == before+1
	default:
		ok = bytes.Equal(s.remote.Bytes[:n], pattern()[:n])
	}
	switch {
	case ok:
		return "ok"
	case s.untouched():
		return "none"
	}
	return "wrong"
}

func number64(b *testbed.Buffer) uint64 { return binary.NativeEndian.Uint64(b.Bytes) }

// untouched reports whether the memory of both sides is unchanged.
func (s *scene) untouched() bool {
	local, remote := make([]byte, bufferLen), make([]byte, bufferLen)
	switch s.opcode {
	case ibv.WR_RDMA_READ:
		copy(remote, pattern())
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		binary.NativeEndian.PutUint64(remote, before)
	default:
		copy(local, pattern())
	}
	return bytes.Equal(local, s.local.Bytes) && bytes.Equal(remote, s.remote.Bytes)
}

// Timeouts for completions that may not arrive. Soft-RoCE on one device completes within a few milliseconds.
const (
	opTimeout   = 2 * time.Second        // for a completion, and for the receive that a success implies
	unsignalled = 150 * time.Millisecond // for the error of an unsignalled work request
	nothingMore = 50 * time.Millisecond  // for a completion that may arrive although nothing requires it
)

// outcome returns the columns from wc_status on, which follow the post.
func (s *scene) outcome(t testing.TB, posted error, flags ibv.SendFlags) []string {
	wait := opTimeout
	switch {
	case posted != nil:
		wait = nothingMore
	case flags&ibv.SEND_SIGNALED == 0:
		wait = unsignalled
	}
	sent, ok := poll(t, s.p.ASend, wait)
	wait = nothingMore
	if ok && sent.Status == ibv.WC_SUCCESS && s.receives() {
		wait = opTimeout
	}
	received, arrived := poll(t, s.p.BRecv, wait)
	return append(append(completion(sent, ok), trim(s.State(s.p.A).String())),
		append(completion(received, arrived), s.data())...)
}

// receives reports whether the opcode consumes a receive.
func (s *scene) receives() bool {
	switch s.opcode {
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV, ibv.WR_RDMA_WRITE_WITH_IMM:
		return true
	}
	return false
}

func poll(t testing.TB, cq *ibv.CQ, wait time.Duration) (ibv.WC, bool) {
	t.Helper()
	wc, received, err := testbed.Poll(cq, wait)
	require.NoError(t, err)
	return wc, received
}

// completion returns a completion's status and opcode. The opcode of a failed one is undefined.
func completion(wc ibv.WC, received bool) []string {
	switch {
	case !received:
		return []string{"none", "none"}
	case wc.Status != ibv.WC_SUCCESS:
		return []string{trim(wc.Status.String()), "-"}
	}
	return []string{trim(wc.Status.String()), trim(wc.Opcode.String())}
}

// trim removes the prefix that the names of an enumeration share.
func trim(name string) string {
	for _, prefix := range []string{"IBV_QPT_", "IBV_WR_", "IBV_WC_", "IBV_QPS_", "IBV_REREG_MR_", "IBV_EVENT_"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return rest
		}
	}
	return name
}

func opcodeName(o ibv.WROpcode) string {
	if name := o.String(); strings.HasPrefix(name, "IBV_") {
		return trim(name)
	}
	return strconv.FormatUint(uint64(o), 10)
}

func flagNames(f ibv.SendFlags) string {
	if f == 0 {
		return "none"
	}
	var all []string
	for _, one := range []ibv.SendFlags{ibv.SEND_SIGNALED, ibv.SEND_INLINE, ibv.SEND_FENCE, ibv.SEND_SOLICITED,
		ibv.SEND_IP_CSUM} {
		if f&one != 0 {
			all = append(all, strings.TrimPrefix(one.String(), "IBV_SEND_"))
		}
	}
	return strings.Join(all, "|")
}

// errnoName returns C's name for the errno of an error, or 0.
func errnoName(err error) string {
	if err == nil {
		return "0"
	}
	var no syscall.Errno
	if errors.As(err, &no) {
		if no == unix.EOPNOTSUPP {
			return "EOPNOTSUPP" // ENOTSUP is the same number
		}
		return unix.ErrnoName(no)
	}
	return err.Error()
}
