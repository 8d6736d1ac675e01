// SPDX-License-Identifier: BSD-2-Clause

// Package pair tests the generated packages between two hosts: two guests with a network between them.
//
//	go run ./conformance/vm/cmd/vmtest -pair -- ./conformance/vm/pair
package pair

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// peer is the information that the hosts exchange over TCP before they connect.
type peer struct {
	GID    [16]byte
	QPNum  uint32
	RKey   uint32
	Buffer uint64
	Sum    [32]byte // checksum of the data to send
}

const (
	total = 64 << 20
	block = 1 << 20
)

// TestMove transfers 64 MiB from host 0 to host 1 in blocks, each by an RDMA write whose immediate data is the block
// number, and compares checksums.
func TestMove(t *testing.T) {
	conn := meet(t)
	defer conn.Close()
	r := testbed.Open(t)
	r.Patient = true
	send, recv := r.CQ(128), r.CQ(128)
	qp := r.QP(ibv.QPT_RC, send, recv)
	buffer := r.Buffer(total, r.Access)
	sends := os.Getenv(wire.EnvHost) == "0"
	if sends {
		random := rand.NewChaCha8([32]byte{7})
		_, err := random.Read(buffer.Bytes)
		require.NoError(t, err)
	}
	own := peer{GID: *r.GID.Raw(), QPNum: qp.QPNum, RKey: buffer.MR.RKey, Buffer: buffer.Address(0),
		Sum: sha256.Sum256(buffer.Bytes)}
	other := exchange(t, conn, own)
	require.NotEqual(t, own.GID, other.GID, "the two hosts have one GID")
	r.GID = ibv.GID{}
	*r.GID.Raw() = other.GID // destination of the path
	r.Init(qp)
	if !sends {
		for i := range testbed.Caps.MaxRecvWR {
			r.Recv(qp, uint64(i), buffer.SGE(0, 0))
		}
	}
	r.RTR(qp, other.QPNum)
	r.RTS(qp)
	exchange(t, conn, own) // barrier: both hosts are ready
	if sends {
		for i := range total / block {
			l := r.Sends(1)
			wr := &l.WRs[0]
			wr.Opcode, wr.SendFlags, l.SGEs[0] = ibv.WR_RDMA_WRITE_WITH_IMM, ibv.SEND_SIGNALED,
				buffer.SGE(i*block, block)
			*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: other.Buffer + uint64(i*block), RKey: other.RKey}
			*wr.ImmData() = ibv.ToBE32(uint32(i))
			_, err := l.Post(qp)
			require.NoError(t, err)
			require.Equal(t, ibv.WC_SUCCESS, r.Completion(send).Status, "block %d", i)
		}
	} else {
		for i := range total / block {
			wc := r.Completion(recv)
			require.Equal(t, ibv.WC_SUCCESS, wc.Status, "block %d", i)
			assert.Equal(t, ibv.WC_RECV_RDMA_WITH_IMM, wc.Opcode)
			assert.EqualValues(t, i, wc.ImmData().Host())
			assert.EqualValues(t, block, wc.ByteLen)
			r.Recv(qp, uint64(i), buffer.SGE(0, 0))
		}
		assert.Equal(t, other.Sum, sha256.Sum256(buffer.Bytes), "received data differs from sent data")
		assert.NotEqual(t, own.Sum, other.Sum)
	}
	exchange(t, conn, own) // barrier: neither host destroys objects in use
}

// meet opens a TCP connection between the hosts.
func meet(t *testing.T) net.Conn {
	t.Helper()
	testbed.Kernel(t)
	remote := os.Getenv(wire.EnvPeer)
	if remote == "" {
		t.Skip("runs in two guests: go run ./conformance/vm/cmd/vmtest -pair -- ./conformance/vm/pair")
	}
	const port = ":4791"
	ctx := testbed.GuestTime(t, 90*time.Second)
	if os.Getenv(wire.EnvHost) == "0" {
		l, err := net.Listen("tcp4", os.Getenv(wire.EnvAddress)+port)
		require.NoError(t, err)
		defer l.Close()
		stop := context.AfterFunc(ctx, func() { l.Close() })
		defer stop()
		conn, err := l.Accept()
		require.NoError(t, err, "%v", context.Cause(ctx))
		return conn
	}
	var errs []error
	for ctx.Err() == nil {
		conn, err := net.DialTimeout("tcp4", remote+port, time.Second)
		if err == nil {
			return conn
		}
		errs = append(errs, err)
		time.Sleep(100 * time.Millisecond)
	}
	require.NoError(t, errors.Join(errs[max(0, len(errs)-3):]...), "the other host does not respond")
	return nil
}

// exchange sends own to the other host and returns what it receives.
func exchange(t *testing.T, conn net.Conn, own peer) (other peer) {
	t.Helper()
	stop := context.AfterFunc(testbed.GuestTime(t, 2*time.Minute), func() { conn.Close() })
	defer stop()
	require.NoError(t, json.NewEncoder(conn).Encode(own))
	// read exactly one line; a JSON decoder would read ahead
	var line []byte
	for one := make([]byte, 1); len(line) == 0 || line[len(line)-1] != '\n'; line = append(line, one[0]) {
		_, err := conn.Read(one)
		require.NoError(t, err)
	}
	require.NoError(t, json.Unmarshal(line, &other))
	return other
}
